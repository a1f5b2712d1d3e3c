package loglines

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func all(r *Reader) (texts []string) {
	for {
		line, err := r.Next()
		if err == io.EOF {
			return texts
		}
		texts = append(texts, string(line.Text))
	}
}

func TestLog_IsReadAndFollowed(t *testing.T) {
	t.Parallel()
	l := &Log{}
	r := l.Reader()
	require.Empty(t, all(r))
	n, err := l.Write([]byte("one\ntwo\n"))
	require.NoError(t, err)
	require.Equal(t, 8, n)
	require.Equal(t, []string{"one", "two"}, all(r))
	fmt.Fprintln(l, "three")
	require.Equal(t, []string{"three"}, all(r))
	require.Equal(t, []string{"one", "two", "three"}, all(l.Reader()))
}

func TestLog_KeepsTheLatestLines(t *testing.T) {
	t.Parallel()
	l := &Log{}
	slow := l.Reader()
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for range 1000 {
				fmt.Fprintln(l, strings.Repeat("x", 1000))
			}
		})
	}
	writers.Wait()
	fmt.Fprintln(l, "last")
	texts := all(slow)
	require.Equal(t, "last", texts[len(texts)-1])
	require.InDelta(t, maxBytes/1000, len(texts), 2)
	require.LessOrEqual(t, l.size, maxBytes)
}
