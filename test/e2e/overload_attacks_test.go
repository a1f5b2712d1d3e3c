//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// attack is a request that clients repeat, each on a connection of its own.
type attack struct {
	name                                    string
	method, path, accept, contentType, body string
	clients                                 int
	codes                                   []int // possible status codes of the answer
	// raw, if not nil, replaces the requests: it keeps connections or requests open until ctx ends.
	raw func(ctx context.Context, t *testing.T, c *confined) (note string)
}

const (
	asTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asProtobuf = "application/vnd.kubernetes.protobuf"
	asCBOR     = "application/cbor"
	asApply    = "application/apply-patch+yaml"
	mergePatch = "application/merge-patch+json"
	jsonPatch  = "application/json-patch+json"
	strategic  = "application/strategic-merge-patch+json"

	attacked = "/api/v1/namespaces/attack/configmaps"
	many     = "/api/v1/namespaces/many/configmaps"
)

func attacks() []attack {
	podOf := func(containers string) string {
		return `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x"},"spec":{"containers":[` + containers + `]}}`
	}
	attackPods := "/api/v1/namespaces/attack/pods"
	full := []int{429, 200}
	return []attack{
		{name: "YAML aliases", method: "POST", path: attacked, contentType: asYAML, body: billionLaughs, clients: 8,
			codes: []int{400}},
		{name: "700,000 YAML dashes", method: "POST", path: attackPods, contentType: asYAML, clients: 4,
			body: "spec:\n  containers:\n" + strings.Repeat("  -\n", 700_000), codes: []int{413, 429}},
		{name: "a million empty containers", method: "POST", path: attackPods, contentType: asJSON, clients: 4,
			body: podOf(strings.Repeat("{},", 1_000_000) + "{}"), codes: []int{413, 429}},
		{name: "ten thousand empty containers", method: "POST", path: attackPods, contentType: asJSON, clients: 4,
			body: podOf(strings.Repeat("{},", 10_000) + "{}"), codes: []int{422, 429}},
		{name: "half a million nulls", method: "POST", path: attackPods, contentType: asJSON, clients: 4,
			body: podOf(strings.Repeat("null,", 500_000) + "{}"), codes: []int{413, 429}},
		{name: "a million empty protobuf messages", method: "POST", path: attackPods, contentType: asProtobuf,
			clients: 4, body: "k8s\x00\x0a\x09\x0a\x02v1\x12\x03Pod\x12\x84\x89\x7a\x12\x80\x89\x7a" +
				strings.Repeat("\x12\x00", 1_000_000), codes: []int{413, 429}},
		{name: "a million empty CBOR maps", method: "POST", path: attacked, contentType: asCBOR, clients: 4,
			body:  "\xd9\xd9\xf7\xa1\x44data\x9a\x00\x0f\x42\x40" + strings.Repeat("\xa0", 1_000_000),
			codes: []int{413, 429, 400}},
		{name: "nesting", method: "POST", path: attacked, contentType: asJSON, clients: 8,
			body: strings.Repeat(`{"a":`, 100_000), codes: []int{400, 413, 429}},
		{name: "a quantity without end", method: "POST", path: attackPods, contentType: asJSON, clients: 8,
			body: podOf(`{"name":"a","image":"b","resources":{"limits":{"cpu":"1e-999999999"}}}`), codes: []int{400}},
		{name: "an apply of 9,000 fields", method: "PATCH", path: attacked + "/wide?fieldManager=m&force=true",
			contentType: asApply, clients: 2, body: `{"apiVersion":"v1","kind":"ConfigMap","data":{` + fieldsOf(9_000) +
				`}}`, codes: []int{200, 201, 409, 413, 429}},
		{name: "a JSON patch that doubles", method: "PATCH", path: attacked + "/patched", contentType: jsonPatch,
			clients: 4, body: `[{"op":"add","path":"/metadata/annotations","value":{"a":"` + strings.Repeat("x", 1000) +
				`"}}` + strings.Repeat(`,{"op":"copy","from":"/metadata","path":"/metadata/annotations/b"}`, 30) + `]`,
			codes: []int{400, 413, 422, 429}},
		{name: "a JSON patch of 10,000 operations", method: "PATCH", path: many + "/c1", contentType: jsonPatch,
			clients: 4, body: `[{"op":"add","path":"/data/a","value":"b"}` + strings.Repeat(
				`,{"op":"copy","from":"/data/text","path":"/data/a"}`, 9_999) + `]`, codes: []int{400, 413, 422, 200, 429}},
		{name: "a strategic patch of 20,000 finalizers", method: "PATCH", path: many + "/c1", contentType: strategic,
			clients: 4, body: `{"metadata":{"$setElementOrder/finalizers":[` + listOf(20_000) + `],"finalizers":[` +
				listOf(20_000) + `]}}`, codes: []int{413, 429}},
		{name: "a pod's update that changes 10,000 fields", method: "PUT", path: attackPods + "/variables",
			contentType: asJSON, clients: 4, body: podOfVariables("b"), codes: []int{422, 429}},
		{name: "a role of a billion rights", method: "POST", contentType: asJSON, clients: 4,
			path: "/apis/rbac.authorization.k8s.io/v1/namespaces/attack/roles",
			body: `{"metadata":{"name":"wide"},"rules":[{"verbs":["get"],"apiGroups":[` + listOf(32_000) +
				`],"resources":[` + listOf(32_000) + `]}]}`, codes: []int{201, 409, 429}},
		{name: "a quota of 60,000 scopes", method: "POST", path: "/api/v1/namespaces/attack/resourcequotas",
			contentType: asJSON, clients: 4, body: `{"metadata":{"name":"x"},"spec":{"scopes":[` + listOf(60_000) + `]}}`,
			codes: []int{422, 413, 429}},
		{name: "a selector of 10,000 values", method: "GET", path: many + "?labelSelector=" +
			url.QueryEscape("n in ("+strings.Repeat("x,", 10_000)+"y)"), clients: 4, codes: full},
		{name: "a field selector of 2,500 terms", method: "GET", path: many + "?fieldSelector=" +
			strings.Repeat("metadata.name!=c1,", 2_500) + "metadata.name!=c2", clients: 4, codes: []int{200, 400, 429}},
		{name: "pages of one", method: "GET", path: many + "?limit=1", clients: 8, codes: full},
		{name: "a page from anywhere on", method: "GET", path: many + "?limit=1&continue=" +
			base64.RawURLEncoding.EncodeToString([]byte(`{"rv":-1,"start":"many/c1"}`)), clients: 50, codes: full},
		{name: "a page of a name in any namespace", method: "GET",
			path: "/api/v1/configmaps?limit=10&fieldSelector=metadata.name=none", clients: 50, codes: full},
		{name: "a limit without end", method: "GET", path: many + "?limit=9223372036854775807", clients: 20,
			codes: full},
		{name: "a made-up continue token", method: "GET", path: many + "?continue=" + strings.Repeat("A", 50_000),
			clients: 8, codes: []int{400}},
		{name: "the past, in one piece", method: "GET", path: many + "?resourceVersionMatch=Exact&resourceVersion=" +
			"40000", clients: 8, codes: []int{200, 413, 429}},
		{name: "50 lists of everything, Table", method: "GET", path: many, accept: asTable, clients: 50, codes: full},
		{name: "50 lists of everything, protobuf", method: "GET", path: many, accept: asProtobuf, clients: 50,
			codes: full},
		{name: "50 lists of everything, YAML", method: "GET", path: many, accept: asYAML, clients: 50, codes: full},
		{name: "50 lists of everything, CBOR", method: "GET", path: many, accept: asCBOR, clients: 50, codes: full},
		{name: "a costly rule of a definition", method: "POST",
			path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", contentType: asJSON, clients: 4,
			body: costlyDefinition, codes: []int{422}},
		{name: "a definition with a pattern of a gigabyte", method: "POST",
			path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", contentType: asJSON, clients: 4,
			body:  definitionOf(`{"type":"string","pattern":"` + strings.Repeat("(a{1000})", 30_000) + `"}`),
			codes: []int{422, 429}},
		{name: "a rule that compiles what clients send", method: "POST", path: attacked, contentType: asJSON, clients: 4,
			body: costly(`"pattern":"` + strings.Repeat("(a{1000})", 30_000) + `"`), codes: []int{422, 429}},
		{name: "a rule that matches what clients send", method: "POST", path: attacked, contentType: asJSON, clients: 4,
			body:  costly(`"pattern":"(a{0,100}){0,10}b","text":"` + strings.Repeat("a", 900_000) + `"`),
			codes: []int{422, 429}},
		{name: "a rule that compares all with all", method: "POST", path: attacked, contentType: asJSON, clients: 4,
			body: costly(fieldsOf(3_000)), codes: []int{422, 429}},
		{name: "200 bodies that trickle", raw: trickle},
		{name: "200 lists without reading", raw: unread(200, many)},
		{name: "1,000 HTTP2 lists without reading", raw: unreadHTTP2(200, 5, many, math.MaxInt32)},
		{name: "1,000 HTTP2 lists without a window", raw: unreadHTTP2(200, 5, many, 0)},
		{name: "200 watches of everything without reading", raw: unread(200, many+"?watch=1&resourceVersion=0")},
		{name: "200 watches of the past without reading", raw: unread(200, many+"?watch=1&resourceVersion=1000")},
		{name: "5,000 HTTP2 watches without reading",
			raw: unreadHTTP2(120, 42, many+"?watch=1&resourceVersion=0", math.MaxInt32)},
		{name: "5,000 HTTP2 watches without a window", raw: unreadHTTP2(120, 42, many+"?watch=1&resourceVersion=0", 0)},
		{name: "5,000 HTTP2 answers without reading", raw: unreadHTTP2(120, 42, "/version", 0)},
		{name: "5,000 HTTP2 pages without reading", raw: unreadHTTP2(120, 42, many+"?limit=10", 0)},
		{name: "5,000 watches without reading", raw: unread(5_000,
			"/api/v1/namespaces/calm/configmaps?watch=1&resourceVersion=0")},
		{name: "10,000 slow connections", raw: slowly},
	}
}

// podOfVariables returns a pod with 10,000 environment variables that share a value.
func podOfVariables(value string) string {
	var b strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&b, `{"name":"k%d","value":"%s%d"},`, i/100, value, i)
	}
	return `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"variables"},"spec":{"containers":[{"name":"a",` +
		`"image":"b","env":[` + strings.TrimSuffix(b.String(), ",") + `]}]}}`
}

func fieldsOf(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"k%d":"v",`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

// listOf returns the items of a list of n texts.
func listOf(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"a.b/%d",`, i)
	}
	return strings.TrimSuffix(b.String(), ",")
}

var costlyDefinition = definitionOf(`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}}},
"x-kubernetes-validations":[{"rule":
"self.a.all(x, self.a.all(y, self.a.all(z, x.matches('(a+)+b') && y + z != x)))"}]}`)

// definitionOf returns a CRD with this schema of its spec.
func definitionOf(spec string) string {
	return `{"metadata":{"name":"boats.example.com"},"spec":{"group":"example.com","scope":"Namespaced",
"names":{"plural":"boats","singular":"boat","kind":"Boat","listKind":"BoatList"},"versions":[{"name":"v1","served":true,
"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":` + spec + `}}}}]}}`
}

// costly returns a ConfigMap that makes costlyPolicy as expensive as possible.
func costly(data string) string {
	return `{"metadata":{"generateName":"c-","labels":{"costly":"yes"}},"data":{` + data + `}}`
}

// costlyPolicy is a policy that an administrator could write without considering malicious input.
const costlyPolicy = `{"metadata":{"name":"costly"},"spec":{"matchConstraints":{
"objectSelector":{"matchLabels":{"costly":"yes"}},
"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}]},
"validations":[{"expression":"!has(object.data.pattern) || object.data.?text.orValue('').matches(object.data.pattern)"},
{"expression":"object.data.all(a, object.data.all(b, a == b || object.data[a] != b))"}]}}`

// applyCostlyPolicy returns when the policy is in force.
func (c *confined) applyCostlyPolicy(t *testing.T) {
	t.Helper()
	const policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpol"
	code, answer := c.do("POST", policies+"icies", asJSON, []byte(costlyPolicy))
	require.Equal(t, 201, code, answer)
	code, answer = c.do("POST", policies+"icybindings", asJSON,
		[]byte(`{"metadata":{"name":"costly"},"spec":{"policyName":"costly","validationActions":["Deny"]}}`))
	require.Equal(t, 201, code, answer)
	eventually(t, time.Minute, "the policy is in force", func() bool {
		code, _ := c.do("POST", attacked, asJSON, []byte(costly(`"pattern":"b"`)))
		return code == 422
	})
}

// attack runs one attack, and requires that it is answered, that the server survives and that the normal clients
// continue.
func (c *confined) attack(t *testing.T, a attack, normal *calm) {
	ctx, cancel := context.WithTimeout(t.Context(), attackFor)
	defer cancel()
	normal.since(t)
	c.peak.Store(0)
	var note string
	if a.raw != nil {
		note = a.raw(ctx, t, c)
	} else {
		note = c.repeat(ctx, t, a)
	}
	seen := normal.since(t)
	t.Logf("%-44s p50 %6.1f ms, p99 %6.1f ms of %4d, %3d MiB; %s", a.name, milliseconds(seen.P50),
		milliseconds(seen.P99), seen.Requests, c.peak.Load()>>20, note)
	require.True(t, c.server.running(), "the server has ended")
	require.Empty(t, seen.Failed, "requests of normal clients")
	require.Positive(t, seen.Requests)
	require.Less(t, seen.P99, calmLimit)
	code, answer := c.get("/readyz")
	require.Equal(t, http.StatusOK, code, answer)
}

// repeat repeats the attack's request until ctx ends, and records the answers.
func (c *confined) repeat(ctx context.Context, t *testing.T, a attack) string {
	var mu sync.Mutex
	codes := map[int]int{}
	var attackers sync.WaitGroup
	for range a.clients {
		client := c.client()
		attackers.Go(func() {
			for ctx.Err() == nil {
				code, answer, err := c.as(ctx, client, "attacker", a.method, a.path, cmp.Or(a.accept, asJSON), a.contentType,
					a.body)
				if ctx.Err() != nil {
					return // in the middle of an answer
				}
				mu.Lock()
				codes[code]++
				first := codes[code] == 1
				mu.Unlock()
				if first && (!slices.Contains(a.codes, code) || err != nil) {
					assert.Fail(t, "an unexpected answer", "%d %v %s", code, err, answer)
				}
				if code == http.StatusTooManyRequests {
					time.Sleep(100 * time.Millisecond) // less than Retry-After
				}
			}
		})
	}
	attackers.Wait()
	var notes []string
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		notes = append(notes, fmt.Sprintf("%d×%d", codes[code], code))
	}
	return strings.Join(notes, ", ")
}

// dial opens a connection from one of several addresses and sends the head of a request.
func (c *confined) dial(ctx context.Context, i int, config *tls.Config, head string) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 2, byte(1+i%4))}}
	conn, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(c.config.Host, "https://"))
	if err != nil {
		return nil, err
	}
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return conn, errors.Join(err, conn.Close())
	}
	_ = secure.SetDeadline(time.Now().Add(2 * time.Second)) // the server may not read all of it
	_, _ = io.WriteString(secure, head)
	return secure, nil
}

// hold opens connections, sends the head of a request on each, and closes them two seconds after the last.
func (c *confined) hold(t *testing.T, n int, protocol, head string) string {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	transport := c.fresh().Transport.(*http.Transport)
	config := transport.TLSClientConfig.Clone()
	config.NextProtos, config.ServerName = []string{protocol}, "127.0.0.1"
	config.ClientSessionCache = tls.NewLRUClientSessionCache(8)
	conns := make([]net.Conn, n)
	var opening sync.WaitGroup
	for part := range 16 {
		opening.Go(func() {
			for i := part; i < n && ctx.Err() == nil; i += 16 {
				conn, err := c.dial(ctx, i, config, head)
				if err == nil {
					conns[i] = conn
				}
			}
		})
	}
	opening.Wait()
	time.Sleep(2 * time.Second)
	open := 0
	for _, conn := range conns {
		if conn != nil {
			open++
			_ = conn.Close()
		}
	}
	require.Greater(t, open, 100)
	return fmt.Sprintf("%d held, %d hung up on", open, n-open)
}

func headOf(method, path, more string) string {
	return method + " " + path + " HTTP/1.1\r\nHost: a\r\nImpersonate-User: system:serviceaccount:default:attacker\r\n" +
		"Impersonate-Group: system:serviceaccounts\r\nImpersonate-Group: system:authenticated\r\n" + more + "\r\n"
}

// unread makes requests without reading the answers.
func unread(n int, path string) func(context.Context, *testing.T, *confined) string {
	return func(_ context.Context, t *testing.T, c *confined) string {
		return c.hold(t, n, "http/1.1", headOf("GET", path, ""))
	}
}

// unreadHTTP2 makes requests on each of n connections without reading the answers. window is the flow-control window of
// each stream.
func unreadHTTP2(n, requests int, path string, window uint32) func(context.Context, *testing.T, *confined) string {
	return func(_ context.Context, t *testing.T, c *confined) string {
		var fields, head bytes.Buffer
		encoder := hpack.NewEncoder(&fields)
		for _, f := range [][2]string{
			{":method", "GET"}, {":scheme", "https"}, {":authority", "a"}, {":path", path},
			{"impersonate-user", "system:serviceaccount:default:attacker"},
			{"impersonate-group", "system:serviceaccounts"}, {"impersonate-group", "system:authenticated"},
		} {
			require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}))
		}
		head.WriteString(http2.ClientPreface)
		framer := http2.NewFramer(&head, nil)
		require.NoError(t, framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}))
		require.NoError(t, framer.WriteWindowUpdate(0, math.MaxInt32-65_535))
		for i := range requests {
			require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1),
				BlockFragment: fields.Bytes(), EndStream: true, EndHeaders: true}))
		}
		return c.hold(t, n, "h2", head.String())
	}
}

// trickle sends most of large request bodies, and then stops.
func trickle(_ context.Context, t *testing.T, c *confined) string {
	head := headOf("POST", attacked, "Content-Type: application/json\r\nContent-Length: 3000000\r\n")
	return c.hold(t, 200, "http/1.1", head+`{"data":{"a":"`+strings.Repeat("x", 400_000))
}

// slowly holds connections that send no data or only a part of a request.
func slowly(ctx context.Context, t *testing.T, c *confined) string {
	address := strings.TrimPrefix(c.config.Host, "https://")
	conns := make([]net.Conn, slowConnections)
	var opening sync.WaitGroup
	opened, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for part := range 50 {
		opening.Go(func() {
			for i := part; i < len(conns); i += 50 {
				conns[i] = openSlowly(opened, address, i)
			}
		})
	}
	opening.Wait()
	<-ctx.Done()
	open := 0
	for _, conn := range conns {
		if conn != nil {
			open++
			_ = conn.Close()
		}
	}
	return fmt.Sprintf("%d of %d opened", open, len(conns))
}
