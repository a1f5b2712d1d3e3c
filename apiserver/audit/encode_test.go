package audit

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver/authn"
)

// The members have the order and names of k8s.io/apiserver/pkg/apis/audit/v1.Event.
func TestEvent_EncodesAsKubernetes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 24, 14, 0, 0, 123456789, time.UTC)
	e := &event{level: LevelRequest, stage: StageResponseComplete, id: "1", uri: "/api?x=<>&y", verb: "create",
		user: &authn.User{Name: "jane", UID: "u", Groups: []string{"a", "b"},
			Extra: map[string][]string{"y": {"2"}, "x": {"1", "3"}}},
		impersonated: &authn.User{Name: "bob"}, ips: []string{"10.0.0.1", "::1"}, agent: "curl",
		object: object{resource: "pods", namespace: "n", name: "p", uid: "i", group: "g", version: "v1",
			resourceVersion: "7", subresource: "status"},
		code: 409, status: &metav1.Status{Status: "Failure", Message: "m", Reason: "Conflict",
			Details: &metav1.StatusDetails{Name: "p"}},
		request: []byte(`{"a":1}`), response: []byte(`{"b":2}`), received: now, stamped: now.Add(time.Millisecond),
		annotations: []annotation{{"b/y", "2"}, {"a/x", "1"}}}
	const before = `"level":"Request","auditID":"1","stage":"ResponseComplete","requestURI":"/api?x=<>&y",` +
		`"verb":"create","user":{"username":"jane","uid":"u","groups":["a","b"],"extra":{"x":["1","3"],"y":["2"]}},` +
		`"impersonatedUser":{"username":"bob"},"sourceIPs":["10.0.0.1","::1"],"userAgent":"curl",` +
		`"objectRef":{"resource":"pods","namespace":"n","name":"p","uid":"i","apiGroup":"g","apiVersion":"v1",` +
		`"resourceVersion":"7","subresource":"status"},"responseStatus":{"metadata":{},"status":"Failure","message":"m",` +
		`"reason":"Conflict","details":{"name":"p"},"code":409}`
	const times = `,"requestReceivedTimestamp":"2026-11-24T14:00:00.123456Z",` +
		`"stageTimestamp":"2026-11-24T14:00:00.124456Z","annotations":{"a/x":"1",`
	require.Equal(t, before+`,"requestObject":{"a":1},"responseObject":{"b":2}`+times+`"b/y":"2"}}`,
		string(e.append(nil, true)))
	require.Equal(t, before+times+`"audit.k8s.io/truncated":"true","b/y":"2"}}`, string(e.append(nil, false)))
	require.Equal(t, `2026-11-24T14:00:00.123456789Z AUDIT: id="1" stage="ResponseComplete" ip="10.0.0.1" `+
		`method="create" user="jane" groups="\"a\",\"b\"" as="bob" asgroups="<lookup>" user-agent="curl" `+
		`namespace="n" uri="/api?x=<>&y" response="409"`+"\n", string(e.appendLegacy(nil)))
}

func FuzzAppendString(f *testing.F) {
	for _, s := range []string{"", "a\"\\\n\r\t\x00\x7f", "ä\u0085\u2028\u2029😀", "\xff\xc3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := appendString(nil, s)
		var got string
		require.NoError(t, json.Unmarshal(b, &got), "%s", b)
		if utf8.ValidString(s) {
			require.Equal(t, s, got)
		}
		for _, r := range string(b) {
			require.False(t, r < ' ' || r >= 0x7f && r <= 0x9f || r == '\u2028' || r == '\u2029', "%q", b)
		}
	})
}

func TestWithoutManagedFields_RemovesOnlyThem(t *testing.T) {
	t.Parallel()
	const mf = `"managedFields":[{"a":"]}\"","b":{"c":[1]}}]`
	for doc, want := range map[string]string{
		`{"metadata":{` + mf + `}}`:                                   `{"metadata":{}}`,
		`{"metadata":{` + mf + `,"name":"a"},"x":` + `{` + mf + `}}`:  `{"metadata":{"name":"a"},"x":{` + mf + `}}`,
		`{"metadata":{"name":"a",` + mf + `,"uid":"u"}}`:              `{"metadata":{"name":"a","uid":"u"}}`,
		`{"metadata":{"name":"a",` + mf + `,` + mf + `}}`:             `{"metadata":{"name":"a"}}`,
		`{"metadata":{` + mf + `,` + mf + `,"name":"a",` + mf + `}}`:  `{"metadata":{"name":"a"}}`,
		`{"items":[{"metadata":{` + mf + `}},1,{"n":2}],"k":"v"}`:     `{"items":[{"metadata":{}},1,{"n":2}],"k":"v"}`,
		`{"rows":[{"cells":[1],"object":{"metadata":{` + mf + `}}}]}`: `{"rows":[{"cells":[1],"object":{"metadata":{}}}]}`,
		`[{"op":"x","path":"` + `"managedFields"`[1:14] + `"}]`:       `[{"op":"x","path":"managedFields"}]`,
		`{"metadata":"managedFields","items":{"managedFields":1}}`:    `{"metadata":"managedFields","items":{"managedFields":1}}`,
		`{"metadata":{"managedFields":null,"n":-1.5e3},"items":true}`: `{"metadata":{"n":-1.5e3},"items":true}`,
	} {
		require.JSONEq(t, want, string(withoutManagedFields([]byte(doc))), doc)
		require.Equal(t, want, string(withoutManagedFields([]byte(doc))), doc)
	}
}

// FuzzWithoutManagedFields checks that valid documents stay valid.
func FuzzWithoutManagedFields(f *testing.F) {
	f.Add([]byte(`{"metadata":{"managedFields":[],"managedFields":{}},"items":[{"metadata":{"managedFields":1}}],"rows":[{}]}`))
	f.Add([]byte(`{"metadata":{"a":"\\","managedFields":"\""},"items":[[],"",{}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		compact, err := compacted(doc)
		if err != nil {
			return
		}
		require.True(t, json.Valid(withoutManagedFields(compact)), "%s", doc)
	})
}

func TestSourceIPs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		forwarded, real, remote string
		want                    []string
	}{
		{"", "", "10.0.0.1:80", []string{"10.0.0.1"}},
		{"", "", "[::1]:80", []string{"::1"}},
		{"", "", "[::ffff:10.0.0.1]:80", []string{"10.0.0.1"}},
		{"1.1.1.1, 2.2.2.2", "", "10.0.0.1:80", []string{"1.1.1.1", "2.2.2.2", "10.0.0.1"}},
		{"1.1.1.1, 10.0.0.1", "1.1.1.1", "10.0.0.1:80", []string{"1.1.1.1", "10.0.0.1"}},
		{"no, <script>, 1.1.1.1", "3.3.3.3", "in-process", []string{"1.1.1.1", "3.3.3.3"}},
	} {
		r := &http.Request{Header: http.Header{}, RemoteAddr: c.remote}
		r.Header.Set("X-Forwarded-For", c.forwarded)
		r.Header.Set("X-Real-Ip", c.real)
		require.Equal(t, c.want, sourceIPs(nil, r), c)
	}
}

func TestAppendTime_HasMicroseconds(t *testing.T) {
	t.Parallel()
	for nanoseconds, want := range map[int]string{0: ".000000Z", 999: ".000000Z", 1000: ".000001Z", 120_034_999: ".120034Z",
		999_999_999: ".999999Z"} {
		now := time.Date(2026, 2, 3, 4, 5, 6, nanoseconds, time.FixedZone("", 3600))
		require.Equal(t, `"2026-02-03T03:05:06`+want+`"`, string(appendTime(nil, now)))
	}
}
