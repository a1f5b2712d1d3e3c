//go:build e2e

package linearizability

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fault breaks something and returns a function that repairs it.
type fault struct {
	name  string
	begin func() (mend func())
}

// faultsOf returns all faults. For etcd they affect one member at a time: more would be an outage.
func faultsOf(servers []*server, members []*process, wires [][]*wire) []fault {
	var all []fault
	for _, s := range servers {
		all = append(all,
			fault{"kill " + s.name, func() func() {
				s.kill()
				return func() { s.start(); s.awaitReady() }
			}},
			fault{"pause " + s.name, func() func() {
				s.pause()
				return s.resume
			}})
	}
	for _, m := range members {
		all = append(all,
			fault{"kill " + m.name, func() func() {
				m.kill()
				return m.start
			}},
			fault{"pause " + m.name, func() func() {
				m.pause()
				return m.resume
			}})
	}
	cut := func(wires ...*wire) func() func() {
		return func() func() {
			for _, w := range wires {
				w.cut()
			}
			return func() {
				for _, w := range wires {
					w.mend()
				}
			}
		}
	}
	for i, s := range servers {
		all = append(all,
			fault{"cut " + s.name + " off", cut(wires[i]...)},
			fault{fmt.Sprintf("cut %s off %s", s.name, members[i].name), cut(wires[i][i])})
	}
	return all
}

// inject injects and repairs n faults, with enough requests in between that each fault has an effect.
func inject(t *testing.T, n int, all []fault, r *recorder, each int64) {
	t.Helper()
	random := rand.New(rand.NewPCG(7, 7))
	order := random.Perm(len(all))
	pass := func(state string) {
		until := r.count.Load() + each
		require.Eventually(t, func() bool {
			return r.count.Load() >= until
		}, patience, 5*time.Millisecond, "no requests end: %s", state)
	}
	pass("at first")
	for i := range n {
		f := all[order[i%len(order)]]
		mend := f.begin()
		pass("during " + f.name)
		mend()
		pass("after " + f.name)
		t.Logf("%3d %s: %d requests, %v", i, f.name, r.count.Load(), time.Since(r.began).Round(time.Second))
	}
}
