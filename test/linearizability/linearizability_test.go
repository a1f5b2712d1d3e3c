//go:build e2e

package linearizability

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThroughFaults_ReadsAndWritesAreLinearizableAndWatchesComplete(t *testing.T) {
	members, urls := startEtcd(t)
	var servers []*server
	var wires [][]*wire // of each server, to each member
	for i := range 2 {
		wires = append(wires, nil)
		var ends []string
		for _, u := range urls {
			w := newWire(t, u)
			wires[i] = append(wires[i], w)
			ends = append(ends, w.url())
		}
		servers = append(servers, startServer(t, fmt.Sprintf("server-%d", i), "--etcd-servers",
			strings.Join(ends, ",")))
	}
	var keys []string
	for i := range 12 {
		keys = append(keys, fmt.Sprintf("k%d", i))
	}
	r := &recorder{began: time.Now()}
	opening := newClient(100, servers[0], r, keys)
	opening.list()
	require.Len(t, r.listings, 1)

	watching, stopWatching := context.WithCancel(context.Background())
	defer stopWatching()
	var following, working sync.WaitGroup
	var watchers []*watcher
	for i := range 4 {
		w := &watcher{t: t, servers: []*server{servers[i%2], servers[(i+1)%2]}, fresh: i >= 2}
		watchers = append(watchers, w)
		following.Go(func() { w.run(watching, r.listings[0].revision) })
	}
	stop := make(chan struct{})
	stopWorking := sync.OnceFunc(func() { close(stop); working.Wait() })
	defer stopWorking()
	for i := range 6 {
		c := newClient(i, servers[i%2], r, keys)
		working.Go(func() { c.run(stop) })
	}
	inject(t, faults(t, 14), faultsOf(servers, members, wires), r, 100)
	stopWorking()

	truth := readHistory(t, urls)
	require.NotEmpty(t, truth.events)
	newest := truth.events[len(truth.events)-1].Revision
	for _, w := range watchers {
		require.Eventually(t, func() bool {
			return w.reached(newest)
		}, patience, 10*time.Millisecond, "a watcher never came to %d", newest)
	}
	stopWatching()
	following.Wait()

	checkRegisters(t, r.operations, truth)
	checkRevisions(t, r.operations)
	checkAcknowledged(t, r.operations, truth)
	for _, l := range r.listings {
		require.Equal(t, truth.at(l.revision), l.values, "Atomic: a list is the state at its revision, %d", l.revision)
	}
	for _, w := range watchers {
		w.check(t, truth)
	}
	report(t, r, truth)
}

// checkAcknowledged checks that etcd has the acknowledged values at the acknowledged revisions.
func checkAcknowledged(t *testing.T, operations []operation, truth *history) {
	t.Helper()
	for _, o := range operations {
		if o.outcome != done || o.kind == remove {
			continue
		}
		events := truth.between(o.revision-1, o.revision)
		require.Len(t, events, 1, "lost: %s", o)
		require.Equal(t, []string{o.key, o.value}, []string{events[0].Key, events[0].Value}, "%s", o)
	}
}

func report(t *testing.T, r *recorder, truth *history) {
	t.Helper()
	outcomes := map[outcome]int{}
	for _, o := range r.operations {
		outcomes[o.outcome]++
	}
	t.Logf("%d requests in %v, %d operations %v, %d lists, %d revisions",
		r.count.Load(), time.Since(r.began).Round(time.Second), len(r.operations), outcomes, len(r.listings),
		len(truth.events))
	require.Greater(t, outcomes[done], outcomes[unknown], "the test has worked on something")
}
