//go:build e2e

package linearizability

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// kind is the kind of a client's request.
type kind string

const (
	create  kind = "create"
	update  kind = "update"  // with the resourceVersion that was read
	replace kind = "replace" // without a resourceVersion
	remove  kind = "delete"
	get     kind = "get" // of one object, or as part of a list
)

// outcome is the result of a request as its client saw it.
type outcome string

const (
	done     outcome = "done"
	missing  outcome = "not found"
	exists   outcome = "already exists"
	conflict outcome = "conflict"
	unknown  outcome = "unknown" // it may have been executed, or may be later
	refused  outcome = "refused" // it was certainly not executed
)

// operation is one request, or one key's part of a list. Values are unique, so that a value identifies a revision.
type operation struct {
	kind     kind
	key      string
	value    string // written, or read
	expected string // for updates: the value at the resourceVersion of the request
	outcome  outcome
	revision int64 // of the value

	call, end int64 // in nanoseconds since the test began
}

func (o operation) String() string {
	return fmt.Sprintf("%s %s %s (expected %s): %s at %d", o.kind, o.key, o.value, o.expected, o.outcome, o.revision)
}

// listing is one consistent list.
type listing struct {
	revision int64
	values   map[string]string
}

// recorder collects the operations of all clients.
type recorder struct {
	began time.Time
	count atomic.Int64 // requests that reached a server, with any outcome

	mu         sync.Mutex
	operations []operation
	listings   []listing
}

func (r *recorder) now() int64 { return int64(time.Since(r.began)) }

func (r *recorder) add(operations ...operation) {
	if operations[0].outcome == refused {
		return // no information; a dead server refuses thousands of connections
	}
	r.count.Add(1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.operations = append(r.operations, operations...)
}

// configMap is a ConfigMap reduced to the necessary fields.
type configMap struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Metadata   struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion,omitempty"`
	} `json:"metadata"`
	Data map[string]string `json:"data,omitempty"`
}

func newConfigMap(key, value, version string) *configMap {
	m := &configMap{APIVersion: "v1", Kind: "ConfigMap", Data: map[string]string{"value": value}}
	m.Metadata.Name, m.Metadata.ResourceVersion = key, version
	return m
}

func (m *configMap) value() string { return m.Data["value"] }

func (m *configMap) revision() int64 { return number(m.Metadata.ResourceVersion) }

func number(version string) int64 {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return math.MinInt64 // not a valid revision: every check fails
	}
	return n
}

const path = "/api/v1/namespaces/default/configmaps"

// client makes random requests to one server, one after the other.
type client struct {
	id      int
	base    string
	http    *http.Client
	record  *recorder
	random  *rand.Rand
	keys    []string
	written int
	read    map[string]*configMap // the last read state, for updates
}

func newClient(id int, s *server, r *recorder, keys []string) *client {
	return &client{
		id: id, base: s.url + path, http: s.client(), record: r, keys: keys,
		random: rand.New(rand.NewPCG(uint64(id), 1)), read: map[string]*configMap{},
	}
}

// run makes requests until stop is closed.
func (c *client) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			c.http.CloseIdleConnections()
			return
		default:
			c.step()
		}
	}
}

func (c *client) step() {
	key := c.keys[c.random.IntN(len(c.keys))]
	switch n := c.random.IntN(100); {
	case n < 25:
		c.write(create, key, http.MethodPost, "", "")
	case n < 45:
		if old := c.read[key]; old != nil {
			delete(c.read, key)
			c.write(update, key, http.MethodPut, old.value(), old.Metadata.ResourceVersion)
		}
	case n < 60:
		c.write(replace, key, http.MethodPut, "", "")
	case n < 72:
		c.write(remove, key, http.MethodDelete, "", "")
	case n < 92:
		c.get(key)
	default:
		c.list()
	}
}

func (c *client) write(k kind, key, method, expected, version string) {
	o := operation{kind: k, key: key, expected: expected, call: c.record.now()}
	url, body := c.base+"/"+key, any(nil)
	if k == create {
		url = c.base
	}
	if k != remove {
		c.written++
		o.value = fmt.Sprintf("%d-%d", c.id, c.written)
		body = newConfigMap(key, o.value, version)
	}
	var answer configMap
	o.outcome = c.do(method, url, body, &answer)
	if o.outcome == done && k != remove {
		o.revision = answer.revision()
		c.read[key] = &answer
	}
	if o.end = c.record.now(); o.outcome == unknown {
		o.end = math.MaxInt64
	}
	c.record.add(o)
}

func (c *client) get(key string) {
	o := operation{kind: get, key: key, call: c.record.now()}
	var answer configMap
	o.outcome = c.do(http.MethodGet, c.base+"/"+key, nil, &answer)
	if o.outcome == done {
		o.value, o.revision = answer.value(), answer.revision()
		c.read[key] = &answer
	}
	o.end = c.record.now()
	c.record.add(o)
}

// list records a get of every key, all at one revision.
func (c *client) list() {
	var answer struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []configMap `json:"items"`
	}
	call := c.record.now()
	result := c.do(http.MethodGet, c.base, nil, &answer)
	end := c.record.now()
	if result != done {
		c.record.add(operation{kind: get, outcome: result, call: call, end: end})
		return
	}
	found := map[string]string{}
	revisions := map[string]int64{}
	for i := range answer.Items {
		found[answer.Items[i].Metadata.Name] = answer.Items[i].value()
		revisions[answer.Items[i].Metadata.Name] = answer.Items[i].revision()
	}
	operations := make([]operation, len(c.keys))
	for i, key := range c.keys {
		operations[i] = operation{kind: get, key: key, call: call, end: end, outcome: missing}
		if value, ok := found[key]; ok {
			operations[i].outcome, operations[i].value, operations[i].revision = done, value, revisions[key]
		}
	}
	c.record.add(operations...)
	c.record.mu.Lock()
	defer c.record.mu.Unlock()
	c.record.listings = append(c.record.listings, listing{number(answer.Metadata.ResourceVersion), found})
}

// do sends a request and returns the outcome by its answer.
func (c *client) do(method, url string, body, into any) outcome {
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			panic(err) // our own types can be marshalled
		}
		reader = strings.NewReader(string(text))
	}
	request, err := http.NewRequest(method, url, reader)
	if err != nil {
		panic(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		var dialing *net.OpError
		if errors.As(err, &dialing) && dialing.Op == "dial" {
			return refused
		}
		return unknown
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return unknown
	}
	return meaning(response.StatusCode, text, into)
}

func meaning(code int, text []byte, into any) outcome {
	switch code {
	case http.StatusOK, http.StatusCreated:
		if json.Unmarshal(text, into) != nil {
			return unknown
		}
		return done
	case http.StatusNotFound:
		return missing
	case http.StatusConflict:
		if strings.Contains(string(text), `"AlreadyExists"`) {
			return exists
		}
		return conflict
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return refused
	}
	return unknown
}
