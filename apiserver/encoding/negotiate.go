package encoding

import (
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/status"
)

// The media types of requests and responses.
const (
	MediaJSON     = "application/json"
	MediaYAML     = "application/yaml"
	MediaProtobuf = "application/vnd.kubernetes.protobuf"
	MediaCBOR     = "application/cbor"
	// mediaCBORSequence is a stream of CBOR items (RFC 8742).
	mediaCBORSequence = "application/cbor-seq"
)

// MediaTypes lists the media types of objects in the server's order of preference.
var MediaTypes = []string{MediaJSON, MediaYAML, MediaProtobuf, MediaCBOR}

// CustomTypes lists the media types that a client may use for custom resources.
var CustomTypes = []string{MediaJSON, MediaYAML, MediaCBOR}

// streamTypes lists the media types of watches.
var streamTypes = []string{MediaJSON + ";stream=watch", MediaProtobuf + ";stream=watch", mediaCBORSequence}

// View is the part or representation of an object that a client requests.
type View uint8

const (
	ViewObject  View = iota // the object itself
	ViewTable               // meta.k8s.io Table, as printed by kubectl get
	ViewPartial             // meta.k8s.io PartialObjectMetadata
)

// Output is the negotiated form of a response.
type Output struct {
	Media  string
	View   View
	Pretty bool
	// Raw marks a body that is not an API object and therefore has no final newline.
	Raw bool
	// Gzip is set if the client accepts compressed bodies.
	Gzip bool
}

// Question contains the parts of a request that determine the form of the response.
type Question struct {
	Header   http.Header
	Query    url.Values
	Resource *api.Resource
	Verb     string
	// Scale is set if the response is a Scale instead of the resource's object.
	Scale bool
	// NoTable is set if the response cannot be represented as a Table.
	NoTable bool
}

// Negotiate chooses the form that the client prefers: by the quality values in the Accept header, then by order.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#alternate-representations-of-resources
func Negotiate(q Question) (Output, error) {
	out := Output{Media: MediaJSON, Pretty: WantsPretty(q.Header, q.Query), Gzip: AcceptsGzip(q.Header)}
	accept := q.Header.Get("Accept")
	if accept == "" || accept == MediaJSON || strings.HasPrefix(accept, "application/json, */*") {
		return out, nil
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, media := range MediaTypes {
			if !covers(clause, media) {
				continue
			}
			v, ok := viewOf(clause.Params, media)
			if !ok || v == ViewTable && q.NoTable || !q.Scale && !speaks(q.Resource, media, v) {
				continue
			}
			if q.Verb == "watch" && media == MediaYAML { // there is no YAML stream
				return out, notAcceptable(streamTypes)
			}
			out.Media, out.View = media, v
			out.Pretty = out.Pretty || clause.Params["pretty"] == "1"
			return out, checkView(clause.Params["as"], q)
		}
	}
	return out, notAcceptable(MediaTypes)
}

// speaks reports whether the media type supports a view of the kind's objects. Protobuf requires a Go type of the
// kind, except for metadata.
func speaks(res *api.Resource, media string, v View) bool {
	return media != MediaProtobuf || v == ViewPartial || speaksProtobuf(res)
}

// NegotiateStatus chooses the media type of a Status, which has no other views.
func NegotiateStatus(accept string) string {
	media, err := NegotiateDocument(accept)
	if err != nil {
		return MediaJSON
	}
	return media
}

// NegotiateDocument chooses the media type of a response without other views, such as a list of resources.
func NegotiateDocument(accept string) (string, error) {
	if accept == "" {
		return MediaJSON, nil
	}
	for _, clause := range goautoneg.ParseAccept(accept) {
		for _, media := range MediaTypes {
			if v, ok := viewOf(clause.Params, media); ok && v == ViewObject && covers(clause, media) {
				return media, nil
			}
		}
	}
	return "", notAcceptable(MediaTypes)
}

// NegotiateDiscovery returns the media type of aggregated discovery,
// "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", if the client asks for it, and otherwise
// "".
func NegotiateDiscovery(accept string) string {
	for part := range strings.SplitSeq(accept, ",") {
		media, params, err := mime.ParseMediaType(strings.TrimSpace(part))
		if err != nil || media != MediaJSON && media != "*/*" {
			continue
		}
		if params["as"] == "" {
			return "" // the client prefers the plain form
		}
		if params["g"] == "apidiscovery.k8s.io" && params["v"] == "v2" && params["as"] == "APIGroupDiscoveryList" {
			return MediaJSON + ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
		}
	}
	return ""
}

// covers reports whether a clause of an Accept header matches the media type.
func covers(clause goautoneg.Accept, media string) bool {
	if clause.Type == "*" {
		return clause.SubType == "*"
	}
	kind, sub, _ := strings.Cut(media, "/")
	return clause.Type == kind && (clause.SubType == sub || clause.SubType == "*")
}

// viewOf parses the parameters of a clause. It returns false if they are not supported.
func viewOf(params map[string]string, media string) (View, bool) {
	if stream := params["stream"]; stream != "" && (stream != "watch" || media == MediaYAML) {
		return ViewObject, false
	}
	as, group, version := params["as"], params["g"], params["v"]
	if as == "" && group == "" && version == "" {
		return ViewObject, true
	}
	if group != metav1.GroupName || version != "v1" && version != "v1beta1" {
		return ViewObject, false
	}
	switch as {
	case "Table":
		return ViewTable, media == MediaJSON || media == MediaYAML
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		return ViewPartial, true
	}
	return ViewObject, false
}

// checkView rejects a request for the metadata of an object if the response is a list, and vice versa.
func checkView(as string, q Question) error {
	switch list := q.Verb == "list" || q.Verb == "deletecollection"; {
	case as == "PartialObjectMetadata" && list:
		return status.Error(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"you requested PartialObjectMetadata, but the requested object is a list ("+q.Resource.Kind+"List)")
	case as == "PartialObjectMetadataList" && !list && q.Verb != "watch":
		return status.Error(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
			"you requested PartialObjectMetadataList, but the requested object is not a list ("+q.Resource.Kind+")")
	}
	return nil
}

// WantsPretty reports whether to indent JSON: if the query requests it, or for browsers and command lines.
func WantsPretty(h http.Header, query url.Values) bool {
	if text := query.Get("pretty"); text != "" {
		pretty, _ := strconv.ParseBool(text)
		return pretty
	}
	agent := h.Get("User-Agent")
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") ||
		strings.HasPrefix(agent, "Mozilla/5.0")
}

// AcceptsGzip reports whether the client lists gzip by name, as clients do.
func AcceptsGzip(h http.Header) bool {
	accept := h.Get("Accept-Encoding")
	return accept == "gzip" || accept != "" && slices.ContainsFunc(strings.Split(accept, ","), func(token string) bool {
		return strings.TrimSpace(token) == "gzip"
	})
}

func notAcceptable(media []string) error {
	return status.Error(http.StatusNotAcceptable, metav1.StatusReasonNotAcceptable,
		"only the following media types are accepted: "+strings.Join(media, ", "))
}
