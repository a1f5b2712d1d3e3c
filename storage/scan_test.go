package storage

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var scanOptions = CollectionOptions{Fields: []string{"spec.nodeName", "spec.replicas", "status.ready"},
	Index: "spec.nodeName"}

func TestScan_SplicesTheRevisionIntoAnyShapeOfMetadata(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ document, want string }{
		"first member":   {`{"metadata":{"name":"a"}}`, `{"metadata":{"resourceVersion":"7","name":"a"}}`},
		"empty metadata": {`{"metadata":{}}`, `{"metadata":{"resourceVersion":"7"}}`},
		"blank metadata": {`{"metadata":{ }}`, `{"metadata":{"resourceVersion":"7" }}`},
		"no metadata":    {`{"kind":"A"}`, `{"metadata":{"resourceVersion":"7"},"kind":"A"}`},
		"empty document": {`{}`, `{"metadata":{"resourceVersion":"7"}}`},
		"blanks": {" { \"metadata\" : {\n\"name\" : \"a\" } } ",
			" { \"metadata\" : {\"resourceVersion\":\"7\",\n\"name\" : \"a\" } } "},
		"last": {`{"spec":{"metadata":{}},"metadata":{"uid":"u"}}`,
			`{"spec":{"metadata":{}},"metadata":{"resourceVersion":"7","uid":"u"}}`},
		"one is there": {`{"metadata":{"name":"a","resourceVersion":"123","uid":"u"}}`,
			`{"metadata":{"name":"a","resourceVersion":"7","uid":"u"}}`},
		"one of another type": {`{"metadata":{"resourceVersion":{"a":1}}}`, `{"metadata":{"resourceVersion":"7"}}`},
		"escaped name": {`{"m\u0065tadata":{"name":"a"}}`,
			`{"m\u0065tadata":{"resourceVersion":"7","name":"a"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := newSchema(scanOptions).object(Key{Name: "a"}, 7, []byte(c.document))
			require.NoError(t, err)
			require.Equal(t, c.want, string(o.JSON))
			require.True(t, json.Valid(o.JSON))
			require.Equal(t, len(o.JSON), cap(o.JSON), "one buffer of the right size")
		})
	}
}

func TestScan_ExtractsFieldsLabelsAndOwners(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		document string
		want     Object
	}{
		"all of it": {
			`{"spec":{"nodeName":"n1","replicas":3,"more":[1,{"nodeName":"no"}]},"metadata":{"uid":"u","labels":{"a":"b","c":""},"ownerReferences":[{"uid":"o1"},{"name":"x","uid":"o2"}]},"status":{"ready":true}}`,
			Object{UID: "u", Labels: Labels{{"a", "b"}, {"c", ""}}, Owners: []string{"o1", "o2"},
				Fields: []string{"n1", "3", "true"}},
		},
		"nothing": {`{"metadata":{}}`, Object{Fields: []string{"", "", ""}}},
		"escapes and other scripts": {
			`{"metadata":{"uid":"\u0075\"","labels":{"\u00e4":"\ud83d\ude00","ö":"\n"}},"spec":{"nodeName":"a\/b"}}`,
			Object{UID: `u"`, Labels: Labels{{"ä", "😀"}, {"ö", "\n"}}, Fields: []string{"a/b", "", ""}},
		},
		"values of other types": {
			`{"metadata":{"uid":5,"labels":null,"ownerReferences":{}},"spec":{"nodeName":null,"replicas":{"a":1}},"status":[]}`,
			Object{Fields: []string{"", "", ""}},
		},
		"labels that are no strings": {`{"metadata":{"labels":{"a":1,"b":"c"}}}`,
			Object{Labels: Labels{{"b", "c"}}, Fields: []string{"", "", ""}}},
		"the same names elsewhere": {
			`{"uid":"no","labels":{"no":"no"},"spec":{"metadata":{"uid":"no"},"template":{"metadata":{"labels":{"no":"no"}}}},"metadata":{"annotations":{"uid":"no"}}}`,
			Object{Fields: []string{"", "", ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := newSchema(scanOptions).object(Key{Name: "a"}, 7, []byte(c.document))
			require.NoError(t, err)
			c.want.Key, c.want.Revision, c.want.JSON = o.Key, 7, o.JSON
			c.want.spliced, c.want.metadata = o.spliced, o.metadata
			require.Equal(t, c.want, *o)
		})
	}
}

func TestScan_RejectsInvalidDocuments(t *testing.T) {
	t.Parallel()
	for _, document := range []string{
		``, ` `, `null`, `[]`, `"a"`, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{,}`, `{a:1}`, `{"a" 1}`,
		`{"a":1 "b":2}`, `{}x`,
		`{"a":[}`, `{"a":[1,]}`, `{"a":[1 2]}`, `{"a":tru}`, `{"a":nul}`, `{"a":01}`, `{"a":1.}`, `{"a":-}`,
		`{"a":1e}`, `{"a":+1}`,
		`{"a":"`, `{"a":"\`, `{"a":"\x"}`, `{"a":"\u12"}`, `{"a":"\u12g4"}`, "{\"a\":\"\n\"}", "{\"a\":\"\x00\"}",
		`{"metadata":null}`, `{"metadata":[]}`, `{"metadata":"a"}`, `{"metadata":{},"metadata":{}}`,
		`{"a":` + strings.Repeat("[", maxDepth+1),
	} {
		_, err := plainSchema.object(Key{Name: "a"}, 7, []byte(document))
		require.Error(t, err, "%.40q", document)
	}
}

// FuzzScan compares the scanner with encoding/json.
func FuzzScan(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","namespace":"b","uid":"u","labels":{"a":"b"},"ownerReferences":[{"uid":"o"}]},"spec":{"nodeName":"n","replicas":1.5e3}}`))
	f.Add([]byte(`{"spec":{"nodeName":"\ud800"},"metadata":{}}`))
	f.Add([]byte(`{"metadata":{"resourceVersion":"1","labels":{"\u00e4":"\xff"}},"status":{"ready":false}}`))
	f.Add([]byte(`{"metadata":{"resourceVersion":[1]}}`))
	sc := newSchema(scanOptions)
	f.Fuzz(func(t *testing.T, doc []byte) {
		original := bytes.Clone(doc)
		o, err := sc.object(Key{Name: "a"}, 7, doc)
		require.Equal(t, original, doc, "the document is the caller's")
		if repeats(doc) {
			return // encoding/json takes the last of equal names; no encoder here writes any
		}
		var all map[string]any
		if e := json.Unmarshal(doc, &all); e != nil || all == nil {
			require.Error(t, err, "encoding/json: %v", e)
			return
		}
		metadata, isObject := all["metadata"].(map[string]any)
		if _, there := all["metadata"]; there && !isObject {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		if metadata == nil {
			metadata = map[string]any{}
			all["metadata"] = metadata
		}
		uid, _ := metadata["uid"].(string)
		require.Equal(t, uid, o.UID)
		requireLabels(t, metadata["labels"], o.Labels)
		for i, path := range scanOptions.Fields {
			require.Equal(t, fieldText(all, doc, path), o.Fields[i], path)
		}
		metadata["resourceVersion"] = "7"
		var got map[string]any
		require.NoError(t, json.Unmarshal(o.JSON, &got))
		require.Equal(t, all, got)
	})
}

func requireLabels(t *testing.T, labels any, got Labels) {
	want := map[string]string{}
	if members, ok := labels.(map[string]any); ok {
		for k, v := range members {
			if text, ok := v.(string); ok {
				want[k] = text
			}
		}
	}
	have := map[string]string{}
	for _, l := range got {
		have[l.Key] = l.Value
	}
	require.Equal(t, want, have)
}

// fieldText returns the value at a path as a field selector sees it, by way of encoding/json.
func fieldText(v any, doc []byte, path string) string {
	raw := json.RawMessage(doc)
	for step := range strings.SplitSeq(path, ".") {
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil {
			return ""
		}
		raw = members[step]
	}
	var text string
	switch raw = bytes.TrimSpace(raw); {
	case len(raw) == 0 || raw[0] == '{' || raw[0] == '[' || raw[0] == 'n':
		return ""
	case json.Unmarshal(raw, &text) == nil:
		return text
	}
	return string(raw)
}

// repeats reports whether an object somewhere in the document has two members of one name.
func repeats(doc []byte) bool {
	if !utf8.Valid(doc) {
		return true // names that differ in their broken bytes are one to encoding/json
	}
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var open []map[string]bool // nil for an array
	wantName := false
	for {
		token, err := d.Token()
		if err != nil {
			return !errors.Is(err, io.EOF) && json.Valid(doc)
		}
		inObject := len(open) > 0 && open[len(open)-1] != nil
		switch v := token.(type) {
		case json.Delim:
			switch v {
			case '{':
				open, wantName = append(open, map[string]bool{}), true
				continue
			case '[':
				open = append(open, nil)
				continue
			}
			open = open[:len(open)-1]
			inObject = len(open) > 0 && open[len(open)-1] != nil
		case string:
			if inObject && wantName {
				if open[len(open)-1][v] {
					return true
				}
				open[len(open)-1][v], wantName = true, false
				continue
			}
		}
		wantName = inObject
	}
}

// typicalPod is a 2 kB pod as kubectl get -o json shows it.
var typicalPod = func() []byte {
	managed := strings.Repeat(
		`{"manager":"kubectl","operation":"Update","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:app":{}}}}},`, 7)
	return fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web-0","namespace":"default","uid":"11111111-2222-3333-4444-555555555555","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"web","tier":"front","pod-template-hash":"abcdef"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web","uid":"66666666","controller":true}],"managedFields":[%s]},"spec":{"containers":[{"name":"web","image":"nginx:1.29","ports":[{"containerPort":80,"protocol":"TCP"}],"resources":{"requests":{"cpu":"100m","memory":"64Mi"}},"terminationMessagePath":"/dev/termination-log","imagePullPolicy":"IfNotPresent"}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"default","nodeName":"node-1","schedulerName":"default-scheduler"},"status":{"phase":"Running"}}`, strings.TrimSuffix(managed, ","))
}()

func BenchmarkScan(b *testing.B) {
	sc := newSchema(podOptions)
	b.SetBytes(int64(len(typicalPod)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := sc.object(Key{Collection: podsName, Namespace: "default", Name: "web-0"}, 1234567,
			typicalPod); err != nil {
			b.Fatal(err)
		}
	}
}
