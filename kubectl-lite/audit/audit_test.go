package audit_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	kubectllite "github.com/coxswain-dev/coxswain/kubectl-lite"
	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

// auditLine returns the event of a complete request.
func auditLine(serial int, change func(map[string]any)) string {
	e := map[string]any{"kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
		"auditID": fmt.Sprint("id-", serial), "stage": "ResponseComplete", "verb": "create",
		"requestURI": "/api/v1/namespaces/default/configmaps", "user": map[string]any{"username": "jane"},
		"sourceIPs": []string{"10.1.1.1", "127.0.0.1"}, "userAgent": "kubectl/v1.20",
		"objectRef": map[string]any{"resource": "configmaps", "namespace": "default", "name": fmt.Sprint("c", serial),
			"apiVersion": "v1"},
		"responseStatus":           map[string]any{"metadata": map[string]any{}, "code": 201},
		"requestReceivedTimestamp": time.Date(2026, 11, 24, 14, 0, serial, 5e6, time.UTC),
		"annotations": map[string]any{"authorization.k8s.io/decision": "allow",
			"authorization.k8s.io/reason": "RBAC: allowed"},
	}
	if change != nil {
		change(e)
	}
	text, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return string(text) + "\n"
}

// audit runs the command without a server.
func audit(t *testing.T, stdin string, args ...string) clitest.Outcome {
	t.Helper()
	return clitest.Run(t, t.Context(), filepath.Join(t.TempDir(), "none"), stdin, append([]string{"audit"}, args...)...)
}

// writeAuditLog writes a log with two old files, one of them compressed.
func writeAuditLog(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "audit.log")
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := io.WriteString(w, auditLine(1, nil))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	for name, text := range map[string]string{
		"audit-2026-11-24T14-00-02.000.log.gz": packed.String(),
		"audit-2026-11-24T14-00-03.000.log":    auditLine(2, nil),
		"audit-notes.log":                      "not one of them\n",
		"audit.log": auditLine(3, func(e map[string]any) {
			e["verb"], e["impersonatedUser"] = "delete", map[string]any{"username": "bob\x1b[2J\n"}
			e["responseStatus"] = map[string]any{"code": 403, "reason": "Forbidden", "message": "no\x1b right"}
		}) + auditLine(4, func(e map[string]any) { e["stage"] = "RequestReceived" }) + "{\"torn\n" +
			auditLine(5, func(e map[string]any) {
				e["objectRef"] = map[string]any{"resource": "deployments", "apiGroup": "apps", "name": "web",
					"namespace": "shop", "subresource": "scale"}
			}) + auditLine(6, func(e map[string]any) {
			delete(e, "objectRef")
			e["requestURI"], e["stage"], e["user"] = "/version", "ResponseStarted", map[string]any{}
			e["responseStatus"] = map[string]any{"code": 401, "message": "Authentication failed"}
			delete(e, "annotations")
		}),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(text), 0o600))
	}
	return path
}

func TestAudit_ShowsRotatedFilesInTheirOrder(t *testing.T) {
	t.Parallel()
	got := audit(t, "", writeAuditLog(t))
	require.Equal(t, `TIME                      USER                VERB    OBJECT                              CODE  RESULT
2026-11-24T14:00:01.005Z  jane                create  configmaps/c1 in default            201   allow
2026-11-24T14:00:02.005Z  jane                create  configmaps/c2 in default            201   allow
2026-11-24T14:00:03.005Z  jane as bob^[[2J\n  delete  configmaps/c3 in default            403   Forbidden
2026-11-24T14:00:05.005Z  jane                create  deployments.apps/web/scale in shop  201   allow
2026-11-24T14:00:06.005Z  <unknown>           create  /version                            401   Authentication failed
`, got.Out)
	require.Equal(t, "lines that are no audit events in JSON: 1\n", got.ErrOut)
	require.Zero(t, got.Code)
}

func TestAudit_Filters(t *testing.T) {
	t.Parallel()
	path := writeAuditLog(t)
	ids := func(args ...string) (found []string) {
		for line := range strings.Lines(audit(t, "", append([]string{path, "-o", "json"}, args...)...).Out) {
			var e struct {
				AuditID string `json:"auditID"`
			}
			require.NoError(t, json.Unmarshal([]byte(line), &e), "an event is one line")
			found = append(found, strings.TrimPrefix(e.AuditID, "id-"))
		}
		return found
	}
	require.Equal(t, []string{"1", "2", "3", "5", "6"}, ids())
	require.Equal(t, []string{"1", "2", "3"}, ids("cm"))
	require.Equal(t, []string{"2"}, ids("ConfigMap/c2"))
	require.Equal(t, []string{"2"}, ids("configmaps", "c2", "-n", "default"))
	require.Empty(t, ids("configmaps", "c2", "-n", "shop"))
	require.Equal(t, []string{"5"}, ids("deploy/web"))
	require.Equal(t, []string{"5"}, ids("deployments.apps"))
	require.Empty(t, ids("deployments.extensions"))
	require.Equal(t, []string{"5"}, ids("-n", "shop"))
	require.Equal(t, []string{"3"}, ids("--user", "bob\x1b[2J\n"))
	require.Equal(t, []string{"1", "2", "3", "5"}, ids("--user", "jane"))
	require.Equal(t, []string{"3"}, ids("--verb", "delete,patch"))
	require.Equal(t, []string{"3", "5", "6"}, ids("--since", "2026-11-24T14:00:03Z"))
	for line, words := range map[string]string{
		"":                       "file of an audit log is required",
		path + " a b c":          "at most one object",
		path + " a/b/c":          "is no object",
		path + " --since x":      "--since must be",
		path + " -o yaml":        "must be 'wide' or 'json'",
		path + "-none":           "no such file",
		path + "/audit.log -o x": "must be",
	} {
		got := audit(t, "", strings.Fields(line)...)
		require.Equal(t, 1, got.Code, line)
		require.Contains(t, got.ErrOut, words, line)
	}
}

func TestAudit_ReadsStandardInputAndSkipsLongLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 33<<20)
	got := audit(t, long+"\n"+auditLine(1, nil)+strings.TrimSpace(auditLine(2, nil)), "-", "-o", "wide")
	require.Contains(t, got.Out, "  201   127.0.0.1  id-1      kubectl/v1.20  RBAC: allowed\n")
	require.Contains(t, got.Out, "id-2")
	require.Equal(t, "lines that are no audit events in JSON: 1\n", got.ErrOut)
}

// lines collects the output of a command.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func TestAudit_FollowsThroughRotations(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	write := func(text string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString(text)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	rotate := func(stamp string) {
		require.NoError(t, os.Rename(path, strings.TrimSuffix(path, ".log")+"-"+stamp+".log"))
	}
	write(auditLine(0, nil))
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out := &lines{}
	done := make(chan error, 1)
	go func() {
		cmd := kubectllite.New(genericiooptions.IOStreams{In: strings.NewReader(""), Out: out, ErrOut: io.Discard})
		cmd.SetArgs([]string{"audit", path, "-f"})
		done <- cmd.ExecuteContext(ctx)
	}()
	arrives := func(serial int) {
		require.Eventually(t, func() bool { return out.count(fmt.Sprintf("configmaps/c%d ", serial)) == 1 }, time.Minute,
			5*time.Millisecond, serial)
	}
	arrives(0)
	line := auditLine(1, nil)
	write(line[:20])
	write(line[20:])
	arrives(1)
	write(auditLine(2, nil))
	rotate("2026-11-24T14-00-01.000")
	write(auditLine(3, nil))
	rotate("2026-11-24T14-00-02.000")
	write(auditLine(4, nil))
	for i := 2; i <= 4; i++ {
		arrives(i)
	}
	stop()
	require.NoError(t, <-done)
	for i := range 5 {
		require.Equal(t, 1, out.count(fmt.Sprintf("configmaps/c%d ", i)))
	}
}
