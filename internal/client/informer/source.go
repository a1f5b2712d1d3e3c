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

// maxStatus bounds what is read of the answer to a request that failed.
const maxStatus = 64 << 10

// source is where an informer's objects come from: one resource of a server, or a part of it.
type source struct {
	client    *rest.RESTClient
	resource  schema.GroupVersionResource
	namespace string // "" for all
	tweak     func(*metav1.ListOptions)
	// accept are the media types of a single object, list those of a list.
	accept, list string
	decoders     runtime.ClientNegotiator
	gate         *gate // may be nil
}

// gate lets one request go ahead of all others. net/http opens a connection for each request that finds none, and all
// but one of them are in vain where the server speaks HTTP/2: the informers of a factory, which start together, would
// make fifty handshakes.
type gate struct {
	first sync.Once
	open  chan struct{}
}

// gatePatience bounds how long the others wait for the first.
const gatePatience = time.Second

func newGate() *gate { return &gate{open: make(chan struct{})} }

// enter returns when the caller may make its request. It has to call leave when the answer begins.
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

// String is the resource's name, for people.
func (s *source) String() string { return s.resource.GroupResource().String() }

// The media types of objects, and those of their metadata alone.
const (
	objects = "application/vnd.kubernetes.protobuf,application/json"

	asMetadata     = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asMetadataList = ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	metadata       = "application/vnd.kubernetes.protobuf" + asMetadata + ",application/json" + asMetadata
	metadataList   = "application/vnd.kubernetes.protobuf" + asMetadataList + ",application/json" + asMetadataList
)

// newSource returns the source of a resource's objects in the form that codecs has.
func newSource(client *rest.RESTClient, resource schema.GroupVersionResource,
	codecs runtime.NegotiatedSerializer) source {
	return source{
		client: client, resource: resource, accept: objects, list: objects,
		decoders: runtime.NewClientNegotiator(codecs, schema.GroupVersion{}),
	}
}

// restClient is the client of a clientset whose requests reach a server; nil of one that is made for tests.
func restClient(c kubernetes.Interface) *rest.RESTClient {
	client, ok := c.CoreV1().RESTClient().(*rest.RESTClient)
	if !ok || client == nil || client.Client == nil {
		return nil
	}
	return client
}

// get makes a list or watch request. The caller closes the response's body.
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
	for _, segment := range segments { // the names that an aggregated server gives its resources may be anything
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

// failure is the error that a response describes.
func (s *source) failure(r *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(r.Body, maxStatus)) // as much as there is
	if decoder, err := s.decoders.Decoder(mediaType(r)); err == nil {
		if o, _, err := decoder.Decode(body, &schema.GroupVersionKind{Version: "v1", Kind: "Status"}, nil); err == nil {
			if status, ok := o.(*metav1.Status); ok && status.Status != metav1.StatusSuccess {
				return apierrors.FromObject(status)
			}
		}
	}
	wait, _ := strconv.Atoi(r.Header.Get("Retry-After")) // none, or no number of seconds
	return apierrors.NewGenericServerResponse(r.StatusCode, http.MethodGet, s.resource.GroupResource(), "",
		string(body), wait, true)
}

// page is a list, or one page of it.
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

// stream is an open watch.
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
		return "", nil // the decoders have a default
	}
	return media, params
}
