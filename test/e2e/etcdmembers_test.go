//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// etcdMember is one of three members, each a process of its own.
type etcdMember struct {
	*process
	metrics string
}

// startMembers starts three members of an etcd in these folders.
func startMembers(t *testing.T, dirs [3]string) (members [3]*etcdMember, clients string) {
	t.Helper()
	url := func() string { return "http://127.0.0.1:" + freePort(t) }
	var cluster, all []string
	var peers [3]string
	for i := range peers {
		peers[i] = url()
		cluster = append(cluster, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i, dir := range dirs {
		client, metrics := url(), url()
		all = append(all, client)
		members[i] = &etcdMember{start(t, "etcd", "--name", fmt.Sprintf("m%d", i), "--data-dir", dir, "--log-level", "error",
			"--listen-client-urls", client, "--advertise-client-urls", client, "--listen-metrics-urls", metrics,
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
			"--initial-cluster", strings.Join(cluster, ",")), metrics}
	}
	for _, m := range members {
		m.awaitHealthy()
	}
	return members, strings.Join(all, ",")
}

func (m *etcdMember) awaitHealthy() {
	m.t.Helper()
	eventually(m.t, time.Minute, "the member is healthy", func() bool {
		require.True(m.t, m.running(), m.out.String())
		health := start(m.t, "health", m.metrics+"/health")
		health.waitExit(10 * time.Second)
		return health.err == nil
	})
}

// counter is an object that grows with every version.
type counter struct {
	c            *cluster
	acknowledged int
	longest      time.Duration // of a write until its acknowledgement
}

// next writes the next version and retries until it is acknowledged.
func (n *counter) next(t *testing.T) {
	t.Helper()
	body, err := json.Marshal(&corev1.ConfigMap{Data: map[string]string{"n": fmt.Sprint(n.acknowledged + 1),
		"ballast": strings.Repeat("x", 512<<10)}})
	require.NoError(t, err)
	began, code := time.Now(), 0
	for code != http.StatusOK {
		var answer string
		code, answer = n.c.do("PATCH", configMaps+"/counter", "application/merge-patch+json", body)
		require.Less(t, time.Since(began), time.Minute, "%d %s", code, tail(answer, 500))
	}
	n.acknowledged++
	n.longest = max(n.longest, time.Since(began))
}

func (n *counter) requireKept(t *testing.T) {
	t.Helper()
	code, body := n.c.get(configMaps + "/counter")
	require.Equal(t, http.StatusOK, code)
	var have corev1.ConfigMap
	require.NoError(t, json.Unmarshal([]byte(body), &have))
	require.Equal(t, fmt.Sprint(n.acknowledged), have.Data["n"])
}

// TestFullDisk_OfOneMemberOfThree fills the disk of one member of etcd while a client writes. The member exits and the
// others continue. With free space it rejoins as a full member.
func TestFullDisk_OfOneMemberOfThree(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	members, clients := startMembers(t, [3]string{dataDir(t), dataDir(t), filepath.Join(disk, "data")})
	dir := dataDir(t)
	c := serving(t, start(t, "apiserver", "--data-dir", dir, "--secure-port", "0", "--etcd-servers", clients), dir)
	c.run(kubectlLite, "create", "configmap", "counter")
	n := &counter{c: c}
	n.next(t)

	filler := filepath.Join(disk, "filler")
	fill(t, filler)
	for full := members[2]; full.running(); {
		require.Less(t, n.acknowledged, 1000, "its disk is full")
		n.next(t)
	}
	require.Contains(t, members[2].out.String(), "no space left on device")
	for range 10 {
		n.next(t)
	}
	n.requireKept(t)
	t.Logf("%d writes acknowledged; the slowest took %d ms", n.acknowledged, n.longest.Milliseconds())

	require.NoError(t, os.Remove(filler))
	again := &etcdMember{start(t, members[2].cmd.Args[1:]...), members[2].metrics}
	again.awaitHealthy()
	members[0].kill() // now the quorum needs the member that was away
	for range 10 {
		n.next(t)
	}
	n.requireKept(t)
	c.server.interrupt()
	c = serving(t, start(t, c.server.cmd.Args[1:]...), dir)
	n.c = c
	n.requireKept(t)
}
