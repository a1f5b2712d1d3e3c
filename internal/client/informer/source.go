package informer

import (
	"context"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"
)

// maxStatus limits the bytes that are read of an error response, as its sender may not be the API server.
const maxStatus = 64 << 10

// source makes an informer's requests: lists and watches of one resource of a server, or of a part of it.
type source struct {
	client    *rest.RESTClient
	resource  schema.GroupVersionResource
	namespace string // "" for all
	tweak     func(*metav1.ListOptions)
	// accept lists the media types of single objects, list those of lists.
	accept, list string
	decoders     runtime.ClientNegotiator
	gate         *gate // may be nil
}

// gate lets one request go ahead of all others. net/http opens a connection for each request that finds none. If
// the server speaks HTTP/2, one connection serves them all and the others are wasted. The informers of a factory
// start together and would make fifty handshakes.
type gate struct {
	first sync.Once     // the first caller of enter goes ahead
	open  chan struct{} // closed when the answer to the first request begins
}

// gatePatience limits the time that the other requests wait for the first.
const gatePatience = time.Second

func newGate() *gate { return &gate{open: make(chan struct{})} }

// enter blocks until the caller may make its request. The caller must call leave when the answer begins or the
// request has failed.
func (g *gate) enter(ctx context.Context) (leave func()) {
	if g == nil {
		return func() {}
	}
	goesAhead := false
	g.first.Do(func() { goesAhead = true })
	if goesAhead {
		return func() { close(g.open) }
	}
	g.await(ctx)
	return func() {}
}

func (g *gate) await(ctx context.Context) {
	late := time.NewTimer(gatePatience)
	defer late.Stop()
	select {
	case <-g.open:
	case <-late.C:
	case <-ctx.Done():
	}
}

// String returns the resource's name, for logs and messages.
func (s *source) String() string { return s.resource.GroupResource().String() }

// The media types of whole objects and of their metadata alone.
const (
	objects = "application/vnd.kubernetes.protobuf,application/json"

	asMetadata     = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asMetadataList = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	metadata       = "application/vnd.kubernetes.protobuf" + asMetadata + ",application/json" + asMetadata
	metadataList   = "application/vnd.kubernetes.protobuf" + asMetadataList + ",application/json" + asMetadataList
)

// newSource returns a source that decodes objects with the given codecs.
func newSource(client *rest.RESTClient, resource schema.GroupVersionResource,
	codecs runtime.NegotiatedSerializer) source {
	return source{
		client: client, resource: resource, accept: objects, list: objects,
		decoders: runtime.NewClientNegotiator(codecs, schema.GroupVersion{}),
	}
}

// restClient returns the REST client of a clientset; nil for a fake clientset.
func restClient(c kubernetes.Interface) *rest.RESTClient {
	client, ok := c.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok || client == nil || client.Client == nil {
		return nil
	}
	return client
}

// get makes a list or watch request. It tweaks the options and passes the gate. The caller must close the
// response's body.
func (s *source) get(ctx context.Context, accept string, o metav1.ListOptions) (*http.Response, error) {
	if s.tweak != nil {
		s.tweak(&o)
	}
	segments := []string{"apis", s.resource.Group, s.resource.Version}
	if s.resource.Group == "" {
		segments = []string{"api", s.resource.Version}
	}
	if s.namespace != "" {
		segments = append(segments, "namespaces", s.namespace)
	}
	segments = append(segments, s.resource.Resource)
	for _, segment := range segments { // an aggregated server may give its resources any names
		if len(rest.IsValidPathSegmentName(segment)) > 0 {
			return nil, apierrors.NewNotFound(s.resource.GroupResource(), "")
		}
	}
	url := s.client.Get().AbsPath(segments...).VersionedParams(&o, scheme.ParameterCodec).URL()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	leave := s.gate.enter(ctx)
	response, err := s.client.Client.Do(request)
	leave()
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer func() { _ = response.Body.Close() }()
		return nil, s.failure(response)
	}
	return response, nil
}

// failure returns the error that a response describes: its Status, or an error made from the code, Retry-After and
// the text.
func (s *source) failure(r *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxStatus)) // a partial text is good enough
	if decoder, err := s.decoders.Decoder(mediaType(r)); err == nil {
		if o, _, err := decoder.Decode(body, &schema.GroupVersionKind{Version: "v1", Kind: "Status"}, nil); err == nil {
			if status, ok := o.(*metav1.Status); ok && status.Status != metav1.StatusSuccess {
				return apierrors.FromObject(status)
			}
		}
	}
	wait, _ := strconv.Atoi(r.Header.Get("Retry-After")) // 0 if it is missing or no number of seconds
	return apierrors.NewGenericServerResponse(r.StatusCode, http.MethodGet, s.resource.GroupResource(), "",
		string(body), wait, true)
}

// page requests a list, or one page of it.
func (s *source) page(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	response, err := s.get(ctx, s.list, o)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	decoder, err := s.decoders.Decoder(mediaType(response))
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	return runtime.Decode(decoder, body)
}

// stream is an open watch. Its user must call Close.
type stream struct {
	*restwatch.Decoder
}

func (s *source) watch(ctx context.Context, o metav1.ListOptions) (*stream, error) {
	response, err := s.get(ctx, s.accept, o)
	if err != nil {
		return nil, err
	}
	objects, events, framer, err := s.decoders.StreamDecoder(mediaType(response))
	if err != nil {
		_ = response.Body.Close()
		return nil, err
	}
	return &stream{restwatch.NewDecoder(streaming.NewDecoder(framer.NewFrameReader(response.Body), events),
		objects)}, nil
}

func mediaType(r *http.Response) (string, map[string]string) {
	media, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return "", nil // the decoders have a default media type
	}
	return media, params
}
