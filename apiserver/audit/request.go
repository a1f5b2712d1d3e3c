package audit

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// HeaderID is the header with a request's audit ID. The client may choose the ID, and gets it in the response.
const HeaderID = "Audit-Id"

const (
	maxID        = 64
	maxUserAgent = 1024 // as in Kubernetes
	truncated    = "...TRUNCATED"
	// maxAnnotations limits the annotations that policies and webhooks add to an event, and maxAnnotation the
	// length of a value.
	maxAnnotations = 256
	maxAnnotation  = 256 << 10
	// maxBody limits the body that is kept for an event, even if events are not truncated. It exceeds the largest
	// body that a client may send. Kubernetes has no such limit and keeps lists of any size.
	maxBody = 8 << 20

	annotationTruncated = "audit.k8s.io/truncated"
)

// Request is an audited request. A nil *Request is one that is not audited: its methods are no-ops. The methods are
// safe for concurrent use, since admission webhooks run in parallel.
type Request struct {
	to *Auditor
	Decision
	longRunning bool

	mu       sync.Mutex
	event    event
	few      [4]annotation // usual annotations need no allocation
	ip       [1]string     // nor does the usual source address
	answered bool
	took     [parts]time.Duration
}

// event is audit.k8s.io/v1 Event, with the data known so far.
// https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/#audit-k8s-io-v1-Event
// https://kubernetes.io/docs/reference/config-api/apiserver-audit.v1/#audit-k8s-io-v1-Event
type event struct {
	level              Level
	stage              Stage
	id, uri, verb      string
	user, impersonated *authn.User
	ips                []string
	agent              string
	object             object
	status             *metav1.Status
	code               int
	request, response  []byte // JSON
	received, stamped  time.Time
	annotations        []annotation
}

// object is a request's objectRef, which exists only if resource is set.
type object struct {
	resource, namespace, name, group, version, subresource string
	uid                                                    types.UID
	resourceVersion                                        string
}

type annotation struct{ key, value string }

// Begin applies the policy to a request with the given attributes. It returns nil if the request is not recorded.
// longRunning marks a request that lasts as long as the client wants.
func (a *Auditor) Begin(hr *http.Request, attributes *authz.Attributes, received time.Time, longRunning bool) *Request {
	d := a.policy.Current().Decide(attributes)
	a.metrics.levels[d.Level].Inc()
	if d.Level == LevelNone {
		return nil
	}
	r := &Request{to: a, Decision: d, longRunning: longRunning}
	r.took[Authentication] = time.Since(received)
	r.event = event{level: d.Level, id: requestID(hr.Header), uri: requestURI(hr), verb: attributes.Verb,
		user: attributes.User, ips: sourceIPs(r.ip[:0], hr), agent: userAgent(hr), received: received}
	r.event.annotations = r.few[:0]
	if attributes.Path == "" {
		r.event.object = object{resource: attributes.Resource, namespace: attributes.Namespace, name: attributes.Name,
			group: attributes.Group, version: attributes.Version, subresource: attributes.Subresource}
	}
	return r
}

// requestID returns the client's ID if it can be quoted anywhere, or else a new one.
func requestID(h http.Header) string {
	id := h.Get(HeaderID)
	odd := func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '\\' }
	if id == "" || len(id) > maxID || strings.ContainsFunc(id, odd) {
		return newID()
	}
	return id
}

// newID returns a random UUID (RFC 9562). It may be predictable, since clients can choose IDs anyway.
func newID() string {
	var id uuid.UUID
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

// requestURI returns the URI as the client spelled it.
func requestURI(hr *http.Request) string {
	if strings.HasPrefix(hr.RequestURI, "/") {
		return hr.RequestURI
	}
	return hr.URL.RequestURI() // a request to a proxy has a whole URL, and one without a client has none
}

func userAgent(hr *http.Request) string {
	agent := hr.UserAgent()
	if len(agent) > maxUserAgent {
		agent = agent[:maxUserAgent] + truncated
	}
	return agent
}

// ID returns the request's audit ID, or "" if it is not audited.
func (r *Request) ID() string {
	if r == nil {
		return ""
	}
	return r.event.id
}

// Bodies reports whether the request's body is recorded.
func (r *Request) Bodies() bool { return r != nil && r.Level >= LevelRequest }

// Responses reports whether the response's body is recorded too.
func (r *Request) Responses() bool { return r != nil && r.Level >= LevelRequestResponse }

// Receive records that the request has arrived. It returns false if the request must be rejected because the event
// cannot be recorded (ModeBlockingStrict).
func (r *Request) Receive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.emit(StageRequestReceived)
}

// Answered records the response code, when the response headers are sent.
func (r *Request) Answered(code int) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answered {
		return
	}
	r.answered, r.event.code = true, code
	if r.longRunning {
		r.emit(StageResponseStarted)
	}
}

// Complete records that the response is complete.
func (r *Request) Complete() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.answered {
		r.closedEarly()
	}
	r.annotateLatency()
	r.emit(StageResponseComplete)
}

// closedEarly completes a request whose client left before there was a response.
func (r *Request) closedEarly() {
	r.event.code = http.StatusOK
	if r.event.status == nil {
		r.event.status = &metav1.Status{Status: metav1.StatusSuccess, Message: "Connection closed early"}
	}
	if r.longRunning {
		r.emit(StageResponseStarted)
	}
}

// Panic records that the handler has panicked.
func (r *Request) Panic(reason any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event.code = http.StatusInternalServerError
	r.event.status = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("APIServer panic'd: %v", reason)}
	r.emit(StagePanic)
}

// Unauthenticated records that the request's credential is invalid. The request has no other event.
func (r *Request) Unauthenticated(message string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event.code = http.StatusUnauthorized
	r.event.status = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonUnauthorized,
		Message: message}
	r.emit(StageResponseStarted)
}

// Impersonate records the user that the request is executed as.
func (r *Request) Impersonate(user *authn.User) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event.impersonated = user
}

// Annotate adds an annotation. If the key exists already, the first value stays.
func (r *Request) Annotate(key, value string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.annotate(key, value)
}

func (r *Request) annotate(key, value string) {
	for _, a := range r.event.annotations {
		if a.key == key {
			return
		}
	}
	if len(r.event.annotations) >= maxAnnotations {
		return
	}
	if len(value) > maxAnnotation {
		value = value[:maxAnnotation] + truncated
	}
	r.event.annotations = append(r.event.annotations, annotation{key, value})
}

// Object fills in the parts of the objectRef that are missing in the path, from the object in the request's body.
func (r *Request) Object(o metav1.Object) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	ref := &r.event.object
	if ref.namespace == "" {
		ref.namespace = o.GetNamespace()
	}
	if ref.name == "" {
		ref.name = o.GetName()
	}
	if ref.uid == "" {
		ref.uid = o.GetUID()
	}
	if ref.resourceVersion == "" {
		ref.resourceVersion = o.GetResourceVersion()
	}
}

// Named records the name that the server chose for a new object. Kubernetes leaves it out.
func (r *Request) Named(name string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.event.object.name == "" {
		r.event.object.name = name
	}
}

// Status records the Status that the client receives.
func (r *Request) Status(s *metav1.Status) {
	if r == nil {
		return
	}
	noted := &metav1.Status{Status: s.Status, Message: s.Message, Reason: s.Reason}
	if s.Status != metav1.StatusSuccess {
		noted.Details = s.Details
	}
	if !r.Bodies() && r.quotes(s) {
		noted.Message, noted.Details = "", withoutMessages(s.Details)
	}
	var doc []byte
	if r.Responses() {
		doc, _ = json.Marshal(s) // cannot fail
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event.status, r.event.response = noted, doc
}

// quotes reports whether a Status may contain part of an object. Validation errors quote the object, and admission
// may quote a credential.
func (r *Request) quotes(s *metav1.Status) bool {
	if s.Status == metav1.StatusSuccess {
		return false
	}
	o := &r.event.object
	return s.Reason == metav1.StatusReasonInvalid || s.Reason == metav1.StatusReasonBadRequest ||
		Confidential(o.group, o.resource, o.subresource)
}

// withoutMessages returns the details without the messages of the causes; the fields and reasons stay.
func withoutMessages(d *metav1.StatusDetails) *metav1.StatusDetails {
	if d == nil {
		return nil
	}
	stripped := *d
	stripped.Causes = slices.Clone(d.Causes)
	for i := range stripped.Causes {
		stripped.Causes[i].Message = ""
	}
	return &stripped
}

// RequestBody records the request's JSON body, if the policy says so.
func (r *Request) RequestBody(group, resource, subresource string, doc []byte) {
	if r.Bodies() {
		r.body(&r.event.request, group, resource, subresource, doc)
	}
}

// ResponseBody records the response's JSON body, if the policy says so.
func (r *Request) ResponseBody(group, resource, subresource string, doc []byte) {
	if r.Responses() {
		r.body(&r.event.response, group, resource, subresource, doc)
	}
}

// TooLarge reports whether a body of that size is too large to record. If so, it annotates the event.
func (r *Request) TooLarge(size int) bool {
	if size > maxBody {
		r.Annotate(annotationTruncated, "true")
	}
	return size > maxBody
}

// body records a body. The policy has decided about the resource in the path, so body ignores a request that was
// served for a different resource.
func (r *Request) body(into *[]byte, group, resource, subresource string, doc []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ref := &r.event.object; ref.group != group || ref.resource != resource || ref.subresource != subresource {
		return
	}
	if len(doc) > maxBody {
		r.annotate(annotationTruncated, "true")
		return
	}
	compact, err := compacted(doc)
	if err != nil {
		return // the request was rejected, since this is not JSON
	}
	if r.OmitManagedFields {
		compact = withoutManagedFields(compact)
	}
	*into = compact
}

// emit passes the event for a stage to the sinks. r.mu must be held.
func (r *Request) emit(stage Stage) bool {
	if r.omit.has(stage) {
		return true
	}
	r.event.stage, r.event.stamped = stage, r.event.received
	if stage != StageRequestReceived {
		r.event.stamped = time.Now()
	}
	return r.to.record(&r.event)
}
