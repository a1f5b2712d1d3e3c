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

// HeaderID is the header of a request's audit ID, which the client may choose and finds in the response.
const HeaderID = "Audit-Id"

const (
	maxID        = 64
	maxUserAgent = 1024 // as in Kubernetes
	truncated    = "...TRUNCATED"
	// maxAnnotations and maxAnnotation bound what policies and webhooks add to an event: their number and the length
	// of a value.
	maxAnnotations = 256
	maxAnnotation  = 256 << 10
	// maxBody is how long a body is at most that is kept for an event, whether events are truncated or not: the largest
	// body that a client may send, and more. Kubernetes has no such limit, and keeps a list of any length.
	maxBody = 8 << 20

	annotationTruncated = "audit.k8s.io/truncated"
)

// Request is a request that is audited. A nil *Request is one that is not: its methods do nothing. They are safe for
// concurrent use: admission webhooks are called side by side.
type Request struct {
	to *Auditor
	Decision
	longRunning bool

	mu       sync.Mutex
	event    event
	few      [4]annotation // room for the usual ones
	ip       [1]string     // and for the usual one
	answered bool
	took     [parts]time.Duration
}

// event is audit.k8s.io/v1 Event, as far as it is known so far.
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
	received, at       time.Time
	annotations        []annotation
}

// object is a request's objectRef; without a resource there is none.
type object struct {
	resource, namespace, name, group, version, subresource string
	uid                                                    types.UID
	resourceVersion                                        string
}

type annotation struct{ key, value string }

// Begin decides about a request, whose attributes are read from its path. It returns nil if nothing is recorded.
// longRunning marks a request that goes on for as long as the client likes.
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

// requestID is the client's, if it is one that can be quoted anywhere, or a new one.
func requestID(h http.Header) string {
	id := h.Get(HeaderID)
	odd := func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '\\' }
	if id == "" || len(id) > maxID || strings.ContainsFunc(id, odd) {
		return newID()
	}
	return id
}

// newID is a random UUID (RFC 9562). Nothing depends on its not being guessed: a client may choose the ID itself.
func newID() string {
	var id uuid.UUID
	binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return id.String()
}

// requestURI is what the client asked for, as it spelled it.
func requestURI(hr *http.Request) string {
	if strings.HasPrefix(hr.RequestURI, "/") {
		return hr.RequestURI
	}
	return hr.URL.RequestURI() // of a proxy's request, which is that of a whole URL, or of no client's
}

func userAgent(hr *http.Request) string {
	agent := hr.UserAgent()
	if len(agent) > maxUserAgent {
		agent = agent[:maxUserAgent] + truncated
	}
	return agent
}

// ID is the request's audit ID, "" if it is not audited.
func (r *Request) ID() string {
	if r == nil {
		return ""
	}
	return r.event.id
}

// Bodies reports whether the request's body is recorded.
func (r *Request) Bodies() bool { return r != nil && r.Level >= LevelRequest }

// Responses reports whether the response's body is recorded as well.
func (r *Request) Responses() bool { return r != nil && r.Level >= LevelRequestResponse }

// Receive records that the request has arrived. It returns false if it must not be answered, because it cannot be
// recorded (the mode blocking-strict).
func (r *Request) Receive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.emit(StageRequestReceived)
}

// Answered notes the code of the response, whose head is sent now.
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

// closedEarly is for a request whose client has gone before there was a response.
func (r *Request) closedEarly() {
	r.event.code = http.StatusOK
	if r.event.status == nil {
		r.event.status = &metav1.Status{Status: metav1.StatusSuccess, Message: "Connection closed early"}
	}
	if r.longRunning {
		r.emit(StageResponseStarted)
	}
}

// Panic records that the server has failed to answer.
func (r *Request) Panic(reason any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event.code = http.StatusInternalServerError
	r.event.status = &metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
		Message: fmt.Sprintf("APIServer panic'd: %v", reason)}
	r.emit(StagePanic)
}

// Unauthenticated records that the request's credential was refused: its only event.
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

// Impersonate notes the user that the request goes on as.
func (r *Request) Impersonate(user *authn.User) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event.impersonated = user
}

// Annotate adds an annotation. Of several with one key the first stays.
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

// Object notes what the request's body says about the object, where its path says nothing.
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

// Named notes the name of a new object, once the server has chosen it. Kubernetes leaves the name out.
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

// Status notes the Status that the client receives.
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
		doc, _ = json.Marshal(s) // of a type that has JSON
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.event.status, r.event.response = noted, doc
}

// quotes reports whether a Status may show a part of an object: an error that is about one quotes it, and what
// admission says about a credential may.
func (r *Request) quotes(s *metav1.Status) bool {
	if s.Status == metav1.StatusSuccess {
		return false
	}
	o := &r.event.object
	return s.Reason == metav1.StatusReasonInvalid || s.Reason == metav1.StatusReasonBadRequest ||
		Confidential(o.group, o.resource, o.subresource)
}

// withoutMessages leaves of the causes which fields they are about, and why.
func withoutMessages(d *metav1.StatusDetails) *metav1.StatusDetails {
	if d == nil {
		return nil
	}
	kept := *d
	kept.Causes = slices.Clone(d.Causes)
	for i := range kept.Causes {
		kept.Causes[i].Message = ""
	}
	return &kept
}

// RequestBody notes the body of a request on a resource, as JSON, if the policy records it.
func (r *Request) RequestBody(group, resource, subresource string, doc []byte) {
	if r.Bodies() {
		r.body(&r.event.request, group, resource, subresource, doc)
	}
}

// ResponseBody notes the body of the response, as JSON, if the policy records it.
func (r *Request) ResponseBody(group, resource, subresource string, doc []byte) {
	if r.Responses() {
		r.body(&r.event.response, group, resource, subresource, doc)
	}
}

// TooLarge reports whether a body of so many bytes is not recorded for its size, and notes that.
func (r *Request) TooLarge(size int) bool {
	if size > maxBody {
		r.Annotate(annotationTruncated, "true")
	}
	return size > maxBody
}

// body keeps a body. The policy has decided about the resource in the path; should the request have been understood
// as one on another resource, it has not decided about this one.
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
	kept, err := compacted(doc)
	if err != nil {
		return // it is not JSON, and was refused
	}
	if r.OmitManagedFields {
		kept = withoutManagedFields(kept)
	}
	*into = kept
}

// emit hands the event of a stage to the sinks. r.mu is held.
func (r *Request) emit(stage Stage) bool {
	if r.omit.has(stage) {
		return true
	}
	r.event.stage, r.event.at = stage, r.event.received
	if stage != StageRequestReceived {
		r.event.at = time.Now()
	}
	return r.to.record(&r.event)
}
