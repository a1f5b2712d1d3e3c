// Package flagparity compares the flags of kubectl-lite with kubectl's. It is a package of its own because building
// kubectl's commands changes global variables of the library that both use.
package flagparity

import (
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/cmd/annotate"
	"k8s.io/kubectl/pkg/cmd/apply"
	"k8s.io/kubectl/pkg/cmd/auth"
	"k8s.io/kubectl/pkg/cmd/describe"
	"k8s.io/kubectl/pkg/cmd/explain"
	"k8s.io/kubectl/pkg/cmd/get"
	"k8s.io/kubectl/pkg/cmd/logs"
	"k8s.io/kubectl/pkg/cmd/run"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/cmd/version"
	"k8s.io/kubectl/pkg/cmd/wait"

	kubectllite "github.com/coxswain-dev/coxswain/kubectl-lite"
)

// kind has the properties of a flag that command lines depend on.
type kind struct {
	Type, Shorthand, Default, WithoutValue string
	Hidden                                 bool
}

// TestFlags_EqualKubectls compares every flag of the commands that kubectl-lite implements itself. The other commands
// are kubectl's.
func TestFlags_EqualKubectls(t *testing.T) {
	t.Parallel()
	streams := genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: io.Discard}
	ours := flagsOf(kubectllite.New(streams))
	theirs := maps.Clone(rollout)
	maps.Copy(theirs, flagsOf(kubectl(streams)))
	compared := 0
	for _, path := range slices.Sorted(maps.Keys(theirs)) {
		require.Contains(t, ours, path)
		for _, name := range slices.Sorted(maps.Keys(theirs[path])) {
			flag := strings.TrimSpace(path + " --" + name)
			got, ok := ours[path][name]
			compared++
			if _, known := differences[flag]; known {
				assert.False(t, ok && got == theirs[path][name], "%s: the difference is gone; take it off the list", flag)
				continue
			}
			assert.True(t, ok, "%s is missing", flag)
			assert.Equal(t, theirs[path][name], got, flag)
		}
	}
	require.Greater(t, compared, 150)
}

// kubectl returns the commands of kubectl that kubectl-lite implements itself, and the flags that all commands inherit.
func kubectl(streams genericiooptions.IOStreams) *cobra.Command {
	root := &cobra.Command{Use: "kubectl"}
	config := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag()
	config.AddFlags(root.PersistentFlags())
	matching := cmdutil.NewMatchVersionFlags(config)
	f := cmdutil.NewFactory(matching)
	root.AddCommand(get.NewCmdGet("kubectl", f, streams), apply.NewCmdApply("kubectl", f, streams),
		logs.NewCmdLogs(f, streams), wait.NewCmdWait(f, streams), version.NewCmdVersion(f, streams),
		describe.NewCmdDescribe("kubectl", f, streams), explain.NewCmdExplain("kubectl", f, streams),
		annotate.NewCmdAnnotate("kubectl", f, streams), run.NewCmdRun(f, streams), auth.NewCmdAuth(f, streams))
	return root
}

// flagsOf returns the flags of all commands below a root, by the command's path without the program's name. The
// flags that all commands inherit have the path "".
func flagsOf(root *cobra.Command) map[string]map[string]kind {
	all := map[string]map[string]kind{}
	var visit func(*cobra.Command, string)
	visit = func(c *cobra.Command, path string) {
		flags := map[string]kind{}
		add := func(f *pflag.Flag) {
			flags[f.Name] = kind{f.Value.Type(), f.Shorthand, f.DefValue, f.NoOptDefVal, f.Hidden}
		}
		c.PersistentFlags().VisitAll(add)
		c.LocalNonPersistentFlags().VisitAll(add)
		all[path] = flags
		for _, sub := range c.Commands() {
			visit(sub, strings.TrimSpace(path+" "+sub.Name()))
		}
	}
	visit(root, "")
	return all
}

// differences are the flags that differ, with the reason.
var differences = map[string]string{
	"wait --local": "waiting needs a server",
}

// rollout has the flags of kubectl's package rollout, which is not imported because it would add a dependency.
var rollout = map[string]map[string]kind{
	"rollout": {},
	"rollout history": {
		"allow-missing-template-keys": {Type: "bool", Default: "true", WithoutValue: "true"},
		"filename":                    {Type: "stringSlice", Shorthand: "f", Default: "[]"},
		"kustomize":                   {Type: "string", Shorthand: "k"},
		"output":                      {Type: "string", Shorthand: "o"},
		"recursive":                   {Type: "bool", Shorthand: "R", Default: "false", WithoutValue: "true"},
		"revision":                    {Type: "int64", Default: "0"},
		"selector":                    {Type: "string", Shorthand: "l"},
		"show-managed-fields":         {Type: "bool", Default: "false", WithoutValue: "true"},
		"template":                    {Type: "string"},
	},
	"rollout pause": {
		"allow-missing-template-keys": {Type: "bool", Default: "true", WithoutValue: "true"},
		"field-manager":               {Type: "string", Default: "kubectl-rollout"},
		"filename":                    {Type: "stringSlice", Shorthand: "f", Default: "[]"},
		"kustomize":                   {Type: "string", Shorthand: "k"},
		"output":                      {Type: "string", Shorthand: "o"},
		"recursive":                   {Type: "bool", Shorthand: "R", Default: "false", WithoutValue: "true"},
		"selector":                    {Type: "string", Shorthand: "l"},
		"show-managed-fields":         {Type: "bool", Default: "false", WithoutValue: "true"},
		"template":                    {Type: "string"},
	},
	"rollout restart": {
		"allow-missing-template-keys": {Type: "bool", Default: "true", WithoutValue: "true"},
		"field-manager":               {Type: "string", Default: "kubectl-rollout"},
		"filename":                    {Type: "stringSlice", Shorthand: "f", Default: "[]"},
		"kustomize":                   {Type: "string", Shorthand: "k"},
		"output":                      {Type: "string", Shorthand: "o"},
		"recursive":                   {Type: "bool", Shorthand: "R", Default: "false", WithoutValue: "true"},
		"selector":                    {Type: "string", Shorthand: "l"},
		"show-managed-fields":         {Type: "bool", Default: "false", WithoutValue: "true"},
		"template":                    {Type: "string"},
	},
	"rollout resume": {
		"allow-missing-template-keys": {Type: "bool", Default: "true", WithoutValue: "true"},
		"field-manager":               {Type: "string", Default: "kubectl-rollout"},
		"filename":                    {Type: "stringSlice", Shorthand: "f", Default: "[]"},
		"kustomize":                   {Type: "string", Shorthand: "k"},
		"output":                      {Type: "string", Shorthand: "o"},
		"recursive":                   {Type: "bool", Shorthand: "R", Default: "false", WithoutValue: "true"},
		"selector":                    {Type: "string", Shorthand: "l"},
		"show-managed-fields":         {Type: "bool", Default: "false", WithoutValue: "true"},
		"template":                    {Type: "string"},
	},
	"rollout status": {
		"filename":  {Type: "stringSlice", Shorthand: "f", Default: "[]"},
		"kustomize": {Type: "string", Shorthand: "k"},
		"recursive": {Type: "bool", Shorthand: "R", Default: "false", WithoutValue: "true"},
		"revision":  {Type: "int64", Default: "0"},
		"selector":  {Type: "string", Shorthand: "l"},
		"timeout":   {Type: "duration", Default: "0s"},
		"watch":     {Type: "bool", Shorthand: "w", Default: "true", WithoutValue: "true"},
	},
	"rollout undo": {
		"allow-missing-template-keys": {Type: "bool", Default: "true", WithoutValue: "true"},
		"dry-run":                     {Type: "string", Default: "none", WithoutValue: "unchanged"},
		"filename":                    {Type: "stringSlice", Shorthand: "f", Default: "[]"},
		"kustomize":                   {Type: "string", Shorthand: "k"},
		"output":                      {Type: "string", Shorthand: "o"},
		"recursive":                   {Type: "bool", Shorthand: "R", Default: "false", WithoutValue: "true"},
		"selector":                    {Type: "string", Shorthand: "l"},
		"show-managed-fields":         {Type: "bool", Default: "false", WithoutValue: "true"},
		"template":                    {Type: "string"},
		"to-revision":                 {Type: "int64", Default: "0"},
	},
}
