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

// kind is what a command line must look like to set a flag, and its value if none does.
type kind struct {
	Type, Shorthand, Default, WithoutValue string
	Hidden                                 bool
}

// TestFlags_AreOfKubectlsKinds compares every flag of the commands that kubectl-lite has written itself. The others
// are kubectl's own.
func TestFlags_AreOfKubectlsKinds(t *testing.T) {
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

// kubectl has kubectl's commands of the names of ours, and the flags that all its commands inherit.
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
// flags that all commands inherit stand under "".
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

// differences are the flags that differ, and why.
var differences = map[string]string{
	"wait --local": "waiting needs a server",
}

// rollout has the flags of kubectl's package of that name, which would bring a dependency of its own.
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
