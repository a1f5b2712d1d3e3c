package testenv

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// Call is a request that the API server has answered.
type Call struct {
	// Time is when the request arrived, by the machine's clock, and Duration how long it took until the answer was
	// sent. A watch is recorded when it begins, with a Duration of 0.
	Time     time.Time
	Duration time.Duration
	// User and UserAgent identify the client.
	User, UserAgent string
	// Verb is the API's verb: get, list, watch, create, update, patch, delete, deletecollection.
	Verb string
	// Group, Version, Resource, Subresource, Namespace and Name come from the request's path. The Name of a create
	// is the created object's.
	Group, Version, Resource, Subresource string
	Namespace, Name                       string
	// Path is set instead of these for paths that are not about resources: "/openapi/v3".
	Path string
	// Query is the request's query as it was sent.
	Query string
	// Code is the HTTP status of the answer, 0 if there was none because the connection was cut.
	Code int
	// Unchanged reports a write that left the object exactly as it was, and was therefore useless. A dry run does
	// not count.
	Unchanged bool
	// Fault reports that a Fault affected the request.
	Fault bool

	number uint64 // its place in the order of the answers
}

// maxText limits each text of a recorded Call, in bytes.
const maxText = 512

func clip(text string) string {
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}

func newCall(r *http.Request) Call {
	a := apiserver.Attributes(r)
	c := Call{Time: time.Now(), UserAgent: clip(r.UserAgent()), Verb: a.Verb, Group: clip(a.Group),
		Version: clip(a.Version), Resource: clip(a.Resource), Subresource: clip(a.Subresource),
		Namespace: clip(a.Namespace), Name: clip(a.Name), Path: clip(a.Path), Query: clip(r.URL.RawQuery)}
	if user := authn.UserFrom(r.Context()); user != nil {
		c.User = clip(user.Name)
	}
	return c
}

// GroupResource returns the kind of object that the call was about.
func (c *Call) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: c.Group, Resource: c.Resource}
}

// On returns the object or path of the call: "sites.example.com/status shop/blog".
func (c *Call) On() string {
	if c.Resource == "" {
		return c.Path
	}
	text := c.GroupResource().String()
	if c.Subresource != "" {
		text += "/" + c.Subresource
	}
	switch {
	case c.Namespace != "" && c.Resource != "namespaces":
		text += " " + c.Namespace + "/" + c.Name
	case c.Name != "":
		text += " " + c.Name
	}
	return text
}

// String returns the call in one line, without its time.
func (c *Call) String() string {
	text := fmt.Sprintf("%s %s: %d", c.Verb, c.On(), c.Code)
	if c.Code == 0 {
		text = fmt.Sprintf("%s %s: no answer", c.Verb, c.On())
	}
	if c.Unchanged {
		text += ", changed nothing"
	}
	if c.Fault {
		text += ", by a fault"
	}
	if c.Verb != "watch" {
		text += ", " + c.Duration.Round(time.Microsecond).String()
	}
	return fmt.Sprintf("%s, %s (%s)", text, c.User, c.UserAgent)
}

// IsWrite reports whether the call was meant to change an object. It may have failed.
func (c *Call) IsWrite() bool {
	switch c.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return c.Resource != ""
	}
	return false
}

// readsStore reports whether the call is a list of all objects at once that the API server must read from its
// store: it has neither a limit nor a resourceVersion. Informers send a resourceVersion.
func (c *Call) readsStore() bool {
	if c.Verb != "list" {
		return false
	}
	query, err := url.ParseQuery(c.Query)
	return err == nil && query.Get("resourceVersion") == "" && query.Get("limit") == ""
}

// Calls are requests in the order of their answers.
type Calls []Call

// Calls returns the recorded requests that match one of the matches; without a match, all requests except the ones
// of the control plane's own parts. The newest 10,000 requests of the code under test are kept, and as many of the
// parts.
func (e *Environment) Calls(matches ...Match) Calls { return e.traffic.calls.list(matches) }

// Matching returns the calls that match one of the matches.
func (c Calls) Matching(matches ...Match) Calls {
	return c.where(func(c *Call) bool { return matchesAny(matches, c) })
}

// Since returns the calls that arrived at t or later, by the machine's clock.
func (c Calls) Since(t time.Time) Calls {
	return c.where(func(c *Call) bool { return !c.Time.Before(t) })
}

// Writes returns the calls that were meant to change an object.
func (c Calls) Writes() Calls { return c.where((*Call).IsWrite) }

// Useless returns the writes that did not change their object. An operator that compares before it writes has none.
func (c Calls) Useless() Calls { return c.where(func(c *Call) bool { return c.Unchanged }) }

// Failed returns the calls that got an error, or no answer.
func (c Calls) Failed() Calls {
	return c.where(func(c *Call) bool { return c.Code == 0 || c.Code >= http.StatusBadRequest })
}

// Conflicts returns the writes that were rejected because they were based on an old resourceVersion (409). A create
// of an object that exists already is not one.
func (c Calls) Conflicts() Calls {
	return c.where(func(c *Call) bool { return c.Code == http.StatusConflict && c.Verb != "create" })
}

// FullLists returns the lists of all objects without a resourceVersion or a limit. Against a large cluster, each of
// them makes the API server read its store: an operator should read from its cache.
func (c Calls) FullLists() Calls { return c.where((*Call).readsStore) }

// Count returns the number of calls.
func (c Calls) Count() int { return len(c) }

func (c Calls) where(accept func(*Call) bool) Calls {
	var accepted Calls
	for i := range c {
		if accept(&c[i]) {
			accepted = append(accepted, c[i])
		}
	}
	return accepted
}

// String returns the calls, one per line.
func (c Calls) String() string {
	var b strings.Builder
	for i := range c {
		fmt.Fprintf(&b, "%s %s\n", c[i].Time.Format("15:04:05.000"), &c[i])
	}
	return b.String()
}

// HotLoop describes a client that repeated the same request.
type HotLoop struct {
	// Call is the first of the calls.
	Call Call
	// Count is the number of calls, and Within the time span of the most frequent ones.
	Count  int
	Within time.Duration
}

// String returns the loop in one line.
func (h HotLoop) String() string {
	return fmt.Sprintf("%d times in %v: %s %s, %s (%s)", h.Count, h.Within.Round(time.Millisecond), h.Call.Verb,
		h.Call.On(), h.Call.User, h.Call.UserAgent)
}

// HotLoops returns the clients that made the same call about the same object at least atLeast times within a
// duration, the most frequent first: for example a reconciler that updates a status, is woken by its own update,
// and updates it again.
func (c Calls) HotLoops(atLeast int, within time.Duration) []HotLoop {
	type same struct{ user, agent, verb, on string }
	all := map[same]Calls{}
	for i := range c {
		key := same{c[i].User, c[i].UserAgent, c[i].Verb, c[i].On()}
		all[key] = append(all[key], c[i])
	}
	var loops []HotLoop
	for _, calls := range all {
		slices.SortStableFunc(calls, func(a, b Call) int { return a.Time.Compare(b.Time) })
		var hottest HotLoop
		for first, last := 0, 0; last < len(calls); last++ {
			for calls[last].Time.Sub(calls[first].Time) > within {
				first++
			}
			if n := last - first + 1; n > hottest.Count {
				hottest = HotLoop{calls[first], n, calls[last].Time.Sub(calls[first].Time)}
			}
		}
		if hottest.Count >= max(atLeast, 1) {
			loops = append(loops, hottest)
		}
	}
	slices.SortFunc(loops, func(a, b HotLoop) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), a.Call.Time.Compare(b.Call.Time))
	})
	return loops
}

// Summary returns a table of the calls: their number by user, verb and kind, and how many of them failed,
// conflicted or were useless.
func (c Calls) Summary() string {
	type row struct{ user, verb, resource string }
	type sum struct{ calls, failed, conflicts, useless int }
	sums := map[row]*sum{}
	var order []row
	for i := range c {
		call := &c[i]
		about := *call
		about.Namespace, about.Name = "", ""
		key := row{call.User, call.Verb, strings.TrimSpace(about.On())}
		if sums[key] == nil {
			sums[key] = &sum{}
			order = append(order, key)
		}
		s := sums[key]
		s.calls++
		if call.Code == 0 || call.Code >= http.StatusBadRequest {
			s.failed++
		}
		if call.Code == http.StatusConflict && call.Verb != "create" {
			s.conflicts++
		}
		if call.Unchanged {
			s.useless++
		}
	}
	slices.SortStableFunc(order, func(a, b row) int {
		return cmp.Or(strings.Compare(a.user, b.user), cmp.Compare(sums[b].calls, sums[a].calls),
			strings.Compare(a.resource, b.resource), strings.Compare(a.verb, b.verb))
	})
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "USER\tVERB\tRESOURCE\tCALLS\tFAILED\tCONFLICTS\tUSELESS")
	for _, key := range order {
		s := sums[key]
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%d\n", key.user, key.verb, key.resource, s.calls, s.failed,
			s.conflicts, s.useless)
	}
	_ = table.Flush() // writes to memory do not fail
	return b.String()
}

// maxCalls limits the recorded calls of the code under test, and of the control plane's parts.
const maxCalls = 10_000

// record holds the recorded calls. Its zero value is ready to use, and its methods are safe for concurrent use.
type record struct {
	mu            sync.Mutex
	number        uint64
	others, parts ring
}

// ring holds the newest calls of one kind of client.
type ring struct {
	calls []Call
	next  int // the place of the next call, once the ring is full
}

func (r *record) add(c *Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.number++
	c.number = r.number
	if c.part() {
		r.parts.add(c)
	} else {
		r.others.add(c)
	}
}

func (r *ring) add(c *Call) {
	if len(r.calls) < maxCalls {
		r.calls = append(r.calls, *c)
		return
	}
	r.calls[r.next] = *c
	r.next = (r.next + 1) % maxCalls
}

func (r *record) list(matches []Match) Calls {
	r.mu.Lock()
	all := Calls(slices.Concat(r.others.calls, r.parts.calls))
	r.mu.Unlock()
	all = all.Matching(matches...)
	slices.SortFunc(all, func(a, b Call) int { return cmp.Compare(a.number, b.number) })
	return all
}
