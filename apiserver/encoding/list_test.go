package encoding

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/storage"
)

// configMapForm returns a form for lists of ConfigMaps, and a list of n ConfigMaps with texts that need quotes in
// YAML and JSON.
func configMapForm(tb testing.TB, out Output, n int) (*Form, *storage.List) {
	tb.Helper()
	kinds := api.NewRegistry(builtin.Kinds()...).Snapshot()
	form := &Form{Output: out, Resource: kinds.Kind(corev1.SchemeGroupVersion.WithKind("ConfigMap")),
		Clock: clock.RealClock{}}
	left := int64(7)
	list := &storage.List{Revision: 12, Continue: "next", Remaining: &left}
	for i := range n {
		doc, err := json.Marshal(&corev1.ConfigMap{
			TypeMeta:   metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("c%d", i), ResourceVersion: fmt.Sprint(i + 1)},
			Data: map[string]string{"text": "  one\n\n\ttwo: <3>\n", "items": "items: []\nrows: []\n", "n": "12",
				"long": strings.Repeat("words and ", 50), "empty": ""},
		})
		require.NoError(tb, err)
		o, err := storage.NewObject(storage.Key{Name: fmt.Sprintf("c%d", i)}, int64(i+1), doc)
		require.NoError(tb, err)
		list.Items = append(list.Items, o)
	}
	return form, list
}

// encodeList encodes a list in one piece.
func encodeList(tb testing.TB, form *Form, list *storage.List, whole func(int) bool) []byte {
	tb.Helper()
	b, err := form.List(tb.Context(), list, whole)
	require.NoError(tb, err)
	body, err := b.whole(tb.Context())
	require.NoError(tb, err)
	if b.Size >= 0 {
		require.Len(tb, body, b.Size)
	}
	return body
}

func TestList_IsEquivalentInEveryForm(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 40} {
		for _, view := range []View{ViewObject, ViewPartial, ViewTable} {
			form, list := configMapForm(t, Output{Media: MediaJSON, View: view}, n)
			plain := encodeList(t, form, list, nil)
			require.True(t, json.Valid(plain))

			form, _ = configMapForm(t, Output{Media: MediaJSON, View: view, Pretty: true}, 0)
			var indented bytes.Buffer
			require.NoError(t, json.Indent(&indented, bytes.TrimSpace(plain), "", "  "))
			require.Equal(t, indented.String(), string(encodeList(t, form, list, nil)))

			form, _ = configMapForm(t, Output{Media: MediaYAML, View: view}, 0)
			back, err := yaml.YAMLToJSONStrict(encodeList(t, form, list, nil))
			require.NoError(t, err)
			require.JSONEq(t, string(plain), string(back))

			if view == ViewTable {
				continue
			}
			form, _ = configMapForm(t, Output{Media: MediaCBOR, View: view}, 0)
			var value any
			require.NoError(t, cbor.Unmarshal(encodeList(t, form, list, nil), &value))
			back, err = json.Marshal(value)
			require.NoError(t, err)
			require.JSONEq(t, string(plain), string(back))
		}
	}
}

func TestList_ProtobufInPartsEqualsTheWhole(t *testing.T) {
	t.Parallel()
	for _, view := range []View{ViewObject, ViewPartial} {
		form, list := configMapForm(t, Output{Media: MediaProtobuf, View: view}, 500)
		offered := 0
		whole := encodeList(t, form, list, nil)
		parts := encodeList(t, form, list, func(size int) bool { offered = size; return false })
		require.Greater(t, offered, maxSmallList)
		require.Equal(t, whole, parts)
	}
	form, list := configMapForm(t, Output{Media: MediaProtobuf}, 500)
	parts := encodeList(t, form, list, func(int) bool { return false })
	var envelope runtime.Unknown
	require.NoError(t, envelope.Unmarshal(bytes.TrimPrefix(parts, protoMagic)))
	var decoded corev1.ConfigMapList
	require.NoError(t, decoded.Unmarshal(envelope.Raw))
	require.Len(t, decoded.Items, 500)
	require.Equal(t, "c499", decoded.Items[499].Name)
}

func TestList_StopsWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	for _, out := range []Output{{Media: MediaJSON}, {Media: MediaJSON, View: ViewTable}, {Media: MediaYAML},
		{Media: MediaCBOR}, {Media: MediaJSON, Pretty: true}, {Media: MediaProtobuf}} {
		form, list := configMapForm(t, out, 500)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		b, err := form.List(ctx, list, func(int) bool { return false })
		if err == nil {
			_, err = b.whole(ctx)
		}
		require.ErrorIs(t, err, context.Canceled, "%v", out)
	}
}

func BenchmarkList(b *testing.B) {
	for name, out := range map[string]Output{
		"json": {Media: MediaJSON}, "table": {Media: MediaJSON, View: ViewTable}, "protobuf": {Media: MediaProtobuf},
		"yaml": {Media: MediaYAML},
	} {
		form, list := configMapForm(b, out, 500)
		for _, how := range []string{"whole", "parts"} {
			if how == "parts" && out.Media != MediaProtobuf {
				continue
			}
			b.Run(name+"/"+how, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					encodeList(b, form, list, func(int) bool { return how == "whole" })
				}
			})
		}
	}
}
