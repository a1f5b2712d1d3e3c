//go:build e2e

package linearizability

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ledger records the acknowledged state of a server with an embedded etcd.
type ledger struct {
	mu      sync.Mutex
	next    int
	acks    int
	newest  int64
	present map[string]string // name → value
	gone    map[string]bool
	doubt   map[string]bool // a deletion was sent but not answered
}

// write creates objects, and deletes some again, until the server is dead.
func (l *ledger) write(c *client) {
	for {
		l.mu.Lock()
		l.next++
		name := fmt.Sprintf("d%d", l.next)
		victim := ""
		if l.next%5 == 0 {
			for victim = range l.present { // a random one
				delete(l.present, victim)
				l.doubt[victim] = true
				break
			}
		}
		l.mu.Unlock()
		var answer configMap
		if victim != "" && !l.acknowledge(c.do(http.MethodDelete, c.base+"/"+victim, nil, &answer), victim, nil) {
			return
		}
		if !l.acknowledge(c.do(http.MethodPost, c.base, newConfigMap(name, "v"+name, ""), &answer), name, &answer) {
			return
		}
	}
}

// acknowledge records an answer. It returns false if there was none.
func (l *ledger) acknowledge(o outcome, name string, created *configMap) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o != done {
		return false
	}
	l.acks++
	if created == nil {
		delete(l.doubt, name)
		l.gone[name] = true
		return true
	}
	l.present[name] = created.value()
	l.newest = max(l.newest, created.revision())
	return true
}

// check reads all objects and compares them.
func (l *ledger) check(t *testing.T, c *client) {
	t.Helper()
	response, err := c.http.Get(c.base)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []configMap `json:"items"`
	}
	require.NoError(t, json.NewDecoder(response.Body).Decode(&list))
	require.GreaterOrEqual(t, number(list.Metadata.ResourceVersion), l.newest, "revisions went back")
	found := map[string]string{}
	for i := range list.Items {
		found[list.Items[i].Metadata.Name] = list.Items[i].value()
	}
	for name, value := range l.present {
		require.Equal(t, value, found[name], "an acknowledged write is lost: %s", name)
	}
	for name := range l.gone {
		require.NotContains(t, found, name, "an acknowledged deletion is lost")
	}
}

func TestEmbedded_LosesNoAcknowledgedWriteWhenKilled(t *testing.T) {
	const writers = 8
	s := startServer(t, "embedded")
	l := &ledger{present: map[string]string{}, gone: map[string]bool{}, doubt: map[string]bool{}}
	random := rand.New(rand.NewPCG(3, 3))
	for kill := range faults(t, 5) {
		var writing sync.WaitGroup
		for i := range writers {
			c := newClient(i, s, &recorder{began: time.Now()}, nil)
			writing.Go(func() {
				l.write(c)
				c.http.CloseIdleConnections()
			})
		}
		l.mu.Lock()
		until := l.acks + 50 + random.IntN(200)
		l.mu.Unlock()
		require.Eventually(t, func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.acks >= until
		}, patience, time.Millisecond)
		s.kill()
		writing.Wait()
		s.start()
		s.awaitReady()
		l.check(t, newClient(0, s, &recorder{began: time.Now()}, nil))
		t.Logf("kill %d: %d acknowledged, %d objects, nothing lost", kill+1, l.acks, len(l.present))
	}
}
