package apiserver

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The media types that are served and understood.
const (
	mediaJSON     = "application/json"
	mediaYAML     = "application/yaml"
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
	mediaCBOR     = "application/cbor"
	// mediaCBORSequence is a stream of CBOR items (RFC 8742).
	mediaCBORSequence = "application/cbor-seq"
)

// mediaTypes are those of requests and responses, the one that is liked best first.
var mediaTypes = []string{mediaJSON, mediaYAML, mediaProtobuf, mediaCBOR}

// streamTypes are those of watches.
var streamTypes = []string{mediaJSON + ";stream=watch", mediaProtobuf + ";stream=watch", mediaCBORSequence}

// view is what a client wants to have made of an object.
type view uint8

const (
	viewObject  view = iota // the object itself
	viewTable               // meta.k8s.io Table: what kubectl get prints
	viewPartial             // meta.k8s.io PartialObjectMetadata
)

// output is the agreed form of the response.
type output struct {
	media  string
	view   view
	pretty bool
	// raw says that the body is no API object, and hence ends without a newline.
	raw bool
	// gzip says that the client understands compressed bodies.
	gzip bool
}

// negotiate picks the form that the client likes best, by the Accept header's quality
// values and, among equals, by its order.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#alternate-representations-of-resources
func negotiate(r *request) (output, error) {
	out := output{media: mediaJSON, pretty: wantsPretty(r), gzip: acceptsGzip(r.Request)}
	accept := r.Header.Get("Accept")
	if accept == "" || accept == mediaJSON || strings.HasPrefix(accept, "application/json, */*") {
		return out, nil
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, media := range mediaTypes {
			if !covers(clause, media) || media == mediaProtobuf && !speaksProtobuf(r.res) {
				continue
			}
			v, ok := viewOf(clause.Params, media)
			if !ok || v == viewTable && !r.hasTable() {
				continue
			}
			if r.verb == "watch" && media == mediaYAML { // there is no YAML stream
				return out, notAcceptable(streamTypes)
			}
			out.media, out.view = media, v
			out.pretty = out.pretty || clause.Params["pretty"] == "1"
			return out, checkView(clause.Params["as"], r)
		}
	}
	return out, notAcceptable(mediaTypes)
}

// negotiateStatus picks the format of a Status, which has no other views.
func negotiateStatus(accept string) string {
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, media := range mediaTypes {
			if v, ok := viewOf(clause.Params, media); ok && v == viewObject && covers(clause, media) {
				return media
			}
		}
	}
	return mediaJSON
}

// covers reports whether a clause of an Accept header names the media type.
func covers(clause goautoneg.Accept, media string) bool {
	if clause.Type == "*" {
		return clause.SubType == "*"
	}
	kind, sub, _ := strings.Cut(media, "/")
	return clause.Type == kind && (clause.SubType == sub || clause.SubType == "*")
}

// viewOf reads the parameters of a clause; false when they ask for what there is not.
func viewOf(params map[string]string, media string) (view, bool) {
	if stream := params["stream"]; stream != "" && (stream != "watch" || media == mediaYAML) {
		return viewObject, false
	}
	as, group, version := params["as"], params["g"], params["v"]
	if as == "" && group == "" && version == "" {
		return viewObject, true
	}
	if group != metav1.GroupName || version != "v1" && version != "v1beta1" {
		return viewObject, false
	}
	switch as {
	case "Table":
		return viewTable, media == mediaJSON || media == mediaYAML
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		return viewPartial, true
	}
	return viewObject, false
}

// hasTable reports whether the answer can be a table: that to a kind that is only ever created, on its own or below an
// object, cannot.
func (r *request) hasTable() bool {
	return !r.res.Review && (r.verb != "create" || r.subresource == "")
}

// checkView refuses metadata of one object where the answer is a list, and the other way.
func checkView(as string, r *request) error {
	switch list := r.verb == "list" || r.verb == "deletecollection"; {
	case as == "PartialObjectMetadata" && list:
		return statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"you requested PartialObjectMetadata, but the requested object is a list ("+r.res.Kind+"List)")
	case as == "PartialObjectMetadataList" && !list && r.verb != "watch":
		return statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"you requested PartialObjectMetadataList, but the requested object is not a list ("+r.res.Kind+")")
	}
	return nil
}

// wantsPretty reports whether JSON is to be indented: when asked for, and for browsers and
// command lines that people read with.
func wantsPretty(r *request) bool {
	query := r.query
	if query == nil { // it is not about a resource
		query = r.URL.Query()
	}
	if text := query.Get("pretty"); text != "" {
		pretty, _ := strconv.ParseBool(text)
		return pretty
	}
	agent := r.Header.Get("User-Agent")
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// acceptsGzip reports whether the client asks for gzip by its name, as clients do.
func acceptsGzip(r *http.Request) bool {
	accept := r.Header.Get("Accept-Encoding")
	return accept == "gzip" || accept != "" && slices.ContainsFunc(strings.Split(accept, ","), func(token string) bool {
		return strings.TrimSpace(token) == "gzip"
	})
}

func notAcceptable(media []string) error {
	return statusError(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: "+strings.Join(media, ", "))
}

func unsupportedMedia(media []string) error {
	return statusError(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+strings.Join(media, ", "))
}
