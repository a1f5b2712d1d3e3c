//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEtcdOutage_IsReportedAndRecovered freezes etcd: reads and writes are answered with a Status in time, and the
// server recovers by itself once etcd continues.
func TestEtcdOutage_IsReportedAndRecovered(t *testing.T) {
	t.Parallel()
	e := startEtcd(t, false)
	c := e.apiserver(dataDir(t), "--request-timeout", "2s")
	code, body := c.do("POST", configMaps, asJSON,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"before"}}`))
	require.Equal(t, http.StatusCreated, code, body)

	e.signal(syscall.SIGSTOP)
	for _, request := range []struct{ method, path, body string }{
		{"POST", configMaps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"during"}}`},
		{"PUT", configMaps + "/before",
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"before"},"data":{"a":"b"}}`},
		{"DELETE", configMaps + "/before", ``},
		{"GET", configMaps + "/before", ``},
		{"GET", configMaps, ``},
	} {
		code, body := c.do(request.method, request.path, asJSON, []byte(request.body))
		require.GreaterOrEqual(t, code, 500, "%s %s: %s", request.method, request.path, body)
		requireAnyStatus(t, body)
	}
	code, _ = c.get("/livez")
	require.Equal(t, http.StatusOK, code, "the server itself is alive")
	code, body = c.get(configMaps + "?resourceVersion=0")
	require.Equal(t, http.StatusOK, code, "reads that may be stale are served from memory: %s", body)

	e.signal(syscall.SIGCONT)
	eventually(t, time.Minute, "the server recovers", func() bool {
		code, _ := c.do("POST", configMaps, asJSON,
			[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"after"}}`))
		return code == http.StatusCreated || code == http.StatusConflict
	})
	c.run(kubectlLite, "get", "configmap", "after")
	eventually(t, time.Minute, "/readyz", func() bool { code, _ := c.get("/readyz"); return code == http.StatusOK })
}

// TestKilledEtcd_IsReconnected restarts etcd under a running server.
func TestKilledEtcd_IsReconnected(t *testing.T) {
	t.Parallel()
	e := startEtcd(t, false)
	c := e.apiserver(dataDir(t), "--request-timeout", "2s")
	c.run(kubectlLite, "create", "configmap", "before")
	e.kill()
	code, body := c.do("POST", configMaps, asJSON,
		[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"during"}}`))
	require.GreaterOrEqual(t, code, 500, body)
	requireAnyStatus(t, body)

	start(t, e.cmd.Args[1:]...)
	eventually(t, time.Minute, "the server recovers", func() bool {
		code, _ := c.get(configMaps + "/before")
		return code == http.StatusOK
	})
	c.run(kubectlLite, "create", "configmap", "after")
	code, body = c.get(configMaps + "/during")
	require.Equal(t, http.StatusNotFound, code, "a write that was refused: %s", body)
}

// TestFullDisk_IsReportedAndRecovered fills the disk under a control plane: writes are rejected with a Status, reads
// still work, no acknowledged write is lost, and writes work again with free space.
func TestFullDisk_IsReportedAndRecovered(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t)
	dir := filepath.Join(disk, "data")
	c := up(t, dir, "--nodes", "0")
	acknowledged := []string{"before"}
	c.run(kubectlLite, "create", "configmap", "before")
	filler := filepath.Join(disk, "filler")
	fill(t, filler)

	refused := 0
	value := strings.Repeat("x", 512<<10)
	// Long enough for etcd to write data from memory by itself.
	for i, full := 0, time.Now(); refused < 3 || time.Since(full) < 2*time.Second; i++ {
		require.Less(t, time.Since(full), time.Minute, "the disk is full, but no write was rejected")
		name := fmt.Sprintf("large-%03d", i)
		code, body := c.do("POST", configMaps, asJSON,
			fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"v":%q}}`, name,
				value))
		if code == http.StatusCreated {
			acknowledged = append(acknowledged, name)
			continue
		}
		refused++
		require.GreaterOrEqual(t, code, 500, body)
		requireAnyStatus(t, body)
	}
	t.Logf("%d writes were refused, %d acknowledged", refused, len(acknowledged))
	require.True(t, c.server.running())
	for _, name := range acknowledged {
		code, body := c.get(configMaps + "/" + name)
		require.Equal(t, http.StatusOK, code, tail(body, 500))
	}

	require.NoError(t, os.Remove(filler))
	eventually(t, time.Minute, "the server recovers", func() bool {
		code, _ := c.do("POST", configMaps, asJSON,
			[]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"after"}}`))
		return code == http.StatusCreated
	})
	c.server.interrupt()
	c = up(t, dir, "--nodes", "0")
	for _, name := range append(acknowledged, "after") {
		code, body := c.get(configMaps + "/" + name)
		require.Equal(t, http.StatusOK, code, tail(body, 500))
	}
	c.server.interrupt()
}

// smallDisk mounts a disk of 192 MiB. It skips the test if that is not possible.
func smallDisk(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: a small disk can only be mounted by root")
	}
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=192m,mode=0700"); err != nil {
		t.Skipf("SKIPPED: no small disk can be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	return disk
}

// fill uses all free space.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	defer f.Close()
	block := make([]byte, 64<<10)
	for {
		if _, err := f.Write(block); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			return
		}
	}
}

// requireAnyStatus requires that the answer is a metav1.Status with a message.
func requireAnyStatus(t *testing.T, body string) {
	t.Helper()
	var status metav1.Status
	require.NoError(t, json.Unmarshal([]byte(body), &status), "not a Status: %s", tail(body, 500))
	require.Equal(t, "Status", status.Kind, body)
	require.NotEmpty(t, status.Reason, body)
	require.NotEmpty(t, status.Message, body)
}
