//go:build e2e

package linearizability

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// event is one change, from etcd's history or from a watch.
type event struct {
	Type     string
	Key      string
	Value    string // for a deletion: the last value
	Revision int64
}

// history is the sequence of all changes of our keys.
type history struct {
	events []event
	values map[string]bool // "key value" for all values that were ever written
}

// readHistory reads all changes from etcd, which was never compacted.
func readHistory(t *testing.T, urls []string) *history {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: urls, DialTimeout: patience})
	require.NoError(t, err)
	defer client.Close()
	const prefix = "/registry/core/configmaps/default/"
	h, state := &history{values: map[string]bool{}}, map[string]string{}
	const end = "/the-end" // outside the servers' prefix, so that their watches do not deliver it
	_, err = client.Put(ctx, end, "")
	require.NoError(t, err)
	for response := range client.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		require.NoError(t, response.Err())
		for _, change := range response.Events {
			if string(change.Kv.Key) == end {
				return h
			}
			key, ours := strings.CutPrefix(string(change.Kv.Key), prefix)
			if !ours {
				continue
			}
			e := event{Type: "MODIFIED", Key: key, Revision: change.Kv.ModRevision}
			if change.Type == clientv3.EventTypeDelete {
				e.Type, e.Value = "DELETED", state[key]
				delete(state, key)
			} else {
				var m configMap
				require.NoError(t, json.Unmarshal(change.Kv.Value, &m))
				e.Value = m.value()
				if _, exists := state[key]; !exists {
					e.Type = "ADDED"
				}
				state[key] = e.Value
				h.values[key+" "+e.Value] = true
			}
			h.events = append(h.events, e)
		}
	}
	require.NoError(t, ctx.Err())
	return h
}

func (h *history) has(key, value string) bool { return h.values[key+" "+value] }

// between returns the changes after one revision, up to another.
func (h *history) between(after, upTo int64) []event {
	index := func(revision int64) int {
		return sort.Search(len(h.events), func(i int) bool { return h.events[i].Revision > revision })
	}
	return h.events[index(after):max(index(after), index(upTo))]
}

// at returns the state at a revision.
func (h *history) at(revision int64) map[string]string {
	state := map[string]string{}
	for _, e := range h.between(0, revision) {
		if state[e.Key] = e.Value; e.Type == "DELETED" {
			delete(state, e.Key)
		}
	}
	return state
}

// segment is the part of a watch that one connection delivered.
type segment struct {
	after   int64             // the revision of the request, or of the end of the initial events
	initial map[string]string // nil if the request had a revision
	begun   bool              // the initial events are complete
	events  []event
	// bookmarks are revisions, by the number of preceding events.
	bookmarks map[int][]int64
	last      int64
}

// watcher watches one server after the other, and resumes each time.
type watcher struct {
	t       *testing.T
	servers []*server
	fresh   bool // requests initial events every time

	mu       sync.Mutex
	segments []*segment
	last     int64
	fault    error // an error that no injected fault explains
}

// run watches until ctx ends.
func (w *watcher) run(ctx context.Context, after int64) {
	w.last = after
	for i := 0; ctx.Err() == nil; i++ {
		s := w.servers[i%len(w.servers)]
		client := s.watchClient()
		w.connect(ctx, s, client)
		client.CloseIdleConnections()
	}
}

func (w *watcher) connect(ctx context.Context, s *server, client *http.Client) {
	w.mu.Lock()
	current := &segment{after: w.last, last: w.last, bookmarks: map[int][]int64{}, begun: true}
	query := url.Values{"watch": {"1"}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {"3"}}
	if w.fresh {
		current.initial, current.begun = map[string]string{}, false
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
	} else {
		query.Set("resourceVersion", strconv.FormatInt(w.last, 10))
	}
	w.segments = append(w.segments, current)
	w.mu.Unlock()
	// A paused server does not close its connections.
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second+requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path+"?"+query.Encode(), nil)
	if err != nil {
		panic(err)
	}
	response, err := client.Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		if response.StatusCode == http.StatusGone {
			w.fail(fmt.Errorf("not resumable at %d: 410", current.after))
		}
		return
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var frame struct {
			Type   string    `json:"type"`
			Object configMap `json:"object"`
		}
		if err := json.Unmarshal(lines.Bytes(), &frame); err != nil {
			return // disconnected
		}
		w.take(current, frame.Type, &frame.Object, lines.Text())
	}
}

func (w *watcher) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fault == nil {
		w.fault = err
	}
}

func (w *watcher) take(current *segment, typ string, m *configMap, line string) {
	if typ == "ERROR" {
		if strings.Contains(line, `"code":410`) {
			w.fail(fmt.Errorf("the watch ended: %s", line))
		}
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	revision := m.revision()
	switch {
	case typ == "BOOKMARK" && !current.begun:
		current.begun, current.after = true, revision
	case typ == "BOOKMARK":
		n := len(current.events)
		current.bookmarks[n] = append(current.bookmarks[n], revision)
	case !current.begun:
		current.initial[m.Metadata.Name] = m.value()
		return
	default:
		current.events = append(current.events, event{typ, m.Metadata.Name, m.value(), revision})
	}
	current.last = max(current.last, revision)
	w.last = max(w.last, revision)
}

func (w *watcher) reached(revision int64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last >= revision
}

// check compares a watcher's record with the history.
func (w *watcher) check(t *testing.T, truth *history) {
	t.Helper()
	require.NoError(t, w.fault)
	events, bookmarks := 0, 0
	for i, s := range w.segments {
		if !s.begun {
			continue // disconnected during the initial events
		}
		if s.initial != nil {
			require.Equal(t, truth.at(s.after), s.initial,
				"Atomic: the initial events of connection %d are the state at %d", i, s.after)
		} else if i > 0 {
			require.Equal(t, w.segments[i-1].last, s.after, "Resumable: connection %d", i)
		}
		seen := map[event]bool{}
		last := s.after
		for _, e := range s.events {
			require.Greater(t, e.Revision, last, "Ordered: connection %d: %v", i, e)
			require.False(t, seen[e], "Unique: connection %d: %v", i, e)
			seen[e], last = true, e.Revision
		}
		require.Equal(t, truth.between(s.after, last), append([]event{}, s.events...),
			"Reliable: connection %d after %d", i, s.after)
		for _, n := range slices.Sorted(maps.Keys(s.bookmarks)) {
			for _, revision := range s.bookmarks[n] {
				require.Equal(t, n, len(truth.between(s.after, revision)), "Bookmarkable: connection %d at %d", i,
					revision)
				bookmarks++
			}
		}
		events += len(s.events)
	}
	t.Logf("watcher: %d connections, %d events, %d bookmarks", len(w.segments), events, bookmarks)
}
