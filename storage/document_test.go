package storage

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestObject_SameStoredAndMetadata(t *testing.T) {
	t.Parallel()
	for doc, metadata := range map[string]string{
		`{}`:                           `{"resourceVersion":"1234"}`,
		`{"kind":"Pod"}`:               `{"resourceVersion":"1234"}`,
		`{"metadata":{}}`:              `{"resourceVersion":"1234"}`,
		`{"a":1,"metadata":{"b":"c"}}`: `{"resourceVersion":"1234","b":"c"}`,
	} {
		o, err := NewObject(podKey("default", "a"), 7, []byte(doc))
		require.NoError(t, err)
		// Deleted events, and collections that are opened with other options, splice once more.
		moved := plainSchema.at(o, 1234)
		require.Equal(t, metadata, string(moved.Metadata()), doc)
		for _, o := range []*Object{o, moved, plainSchema.at(moved, 5)} {
			require.True(t, o.Same([]byte(doc)), "%s in %s", doc, o.JSON)
			require.Equal(t, doc, string(o.Stored()))
			require.False(t, o.Same(o.JSON))
			require.False(t, o.Same([]byte(doc[:len(doc)-1]+" ")))
		}
	}
}
