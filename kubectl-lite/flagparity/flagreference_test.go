package flagparity

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	kubectllite "github.com/coxswain-dev/coxswain/kubectl-lite"
)

var update = flag.Bool("update", false, "renew docs/flags-kubectl-lite.md")

// flagsIntro is the part of the page before the table.
const flagsIntro = `# The flags of kubectl-lite

` + "`kubectl-lite`" + ` has kubectl's commands and flags, with their meaning. These are its additions; a command without
a flag in the table is not in kubectl. [kubectl-lite.md](kubectl-lite.md) describes them. The page is made from the
program: ` + "`go test ./kubectl-lite/flagparity -run TestFlags -update`" + ` renews it.

| command | flag | default | |
|---|---|---|---|
`

// own lists the commands that kubectl does not have. Their subcommands belong to them.
var own = map[string]bool{"audit": true, "clock": true, "tree": true, "timeline": true, "ttl": true, "why": true}

// TestFlags_AreInTheDocuments compares docs/flags-kubectl-lite.md with the commands.
func TestFlags_AreInTheDocuments(t *testing.T) {
	t.Parallel()
	const file = "../../docs/flags-kubectl-lite.md"
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: io.Discard}
	theirs := maps.Clone(rollout)
	maps.Copy(theirs, flagsOf(kubectl(streams)))
	page := flagsIntro + additions(kubectllite.New(streams), theirs)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(page), 0o644))
		return
	}
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(raw), page,
		"the flags have changed: go test ./kubectl-lite/flagparity -run TestFlags -update")
}

// additions returns a row for each flag that kubectl's command of the same name does not have. Commands that are
// neither in theirs nor own are kubectl's.
func additions(root *cobra.Command, theirs map[string]map[string]kind) string {
	var rows strings.Builder
	var visit func(*cobra.Command, string)
	visit = func(c *cobra.Command, path string) {
		known, compared := theirs[path]
		row := func(f *pflag.Flag) {
			if _, ok := known[f.Name]; !ok && !f.Hidden && f.Name != "help" {
				value, usage := pflag.UnquoteUsage(f)
				name := strings.TrimSpace("--" + f.Name + " " + value)
				fmt.Fprintf(&rows, "| %s | `%s` | %s | %s |\n", path, name, strings.Trim(f.DefValue, "[]"),
					strings.ReplaceAll(usage, "|", `\|`))
			}
		}
		verb, _, _ := strings.Cut(path, " ")
		before := rows.Len()
		if compared && path != "" || own[verb] { // all global flags are kubectl's
			c.NonInheritedFlags().VisitAll(row)
		}
		if own[verb] && rows.Len() == before {
			fmt.Fprintf(&rows, "| %s | | | %s |\n", path, c.Short)
		}
		for _, sub := range c.Commands() {
			visit(sub, strings.TrimSpace(path+" "+sub.Name()))
		}
	}
	visit(root, "")
	return rows.String()
}
