//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAudit_LogsUsersAndRequests makes requests with kubectl, one of them as another user, and reads the log after the
// server was killed and restarted.
func TestAudit_LogsUsersAndRequests(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	log := filepath.Join(t.TempDir(), "audit.log")
	args := []string{"--nodes", "1", "--audit-policy-file", "testdata/audit.yaml", "--audit-log-path", log}
	c := up(t, dir, args...)
	c.run(kubectl, "create", "deployment", "web", "--image=nginx")
	c.run(kubectl, "create", "secret", "generic", "s", "--from-literal=password=correct-horse")
	c.run(kubectl, "rollout", "status", "deployment/web", "--timeout=60s")
	_, _, err := c.try(kubectl, "delete", "deployment", "web", "--as", "jane")
	require.Error(t, err)
	_, stderr, err := c.try(kubectl, "exec", "deployment/web", "--", "date")
	require.Error(t, err)
	require.Contains(t, stderr, "simulated")
	c.run(kubectl, "delete", "deployment", "web")

	admin := []string{"audit", log, "--user", "kubernetes-admin", "--verb", "create,delete"}
	eventually(t, time.Minute, "exec is complete", func() bool {
		out, _, _ := c.try(kubectlLite, "audit", log, "pods")
		return strings.Contains(out, "/exec in default")
	})
	shown := c.run(kubectlLite, append(admin, "deploy/web")...)
	require.Regexp(t, `(?s)`+
		`kubernetes-admin +create +deployments\.apps/web in default +201 +allow\n.*`+
		`kubernetes-admin as jane +delete +deployments\.apps/web in default +403 +Forbidden\n.*`+
		`kubernetes-admin +delete +deployments\.apps/web in default +200 +allow\n$`, shown)
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.NotContains(t, string(text), "correct-horse")
	require.NotContains(t, string(text), "Y29ycmVjdC1ob3JzZQ", "nor in base64")

	c.server.kill()
	c = up(t, dir, args...)
	c.run(kubectl, "create", "deployment", "again", "--image=nginx")
	shown = c.run(kubectlLite, append(admin, "deployments")...)
	require.Contains(t, shown, "as jane", "every answered request was recorded before")
	require.Contains(t, shown, "deployments.apps/again")
}
