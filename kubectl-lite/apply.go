package kubectllite

import (
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/kubectl/pkg/cmd/apply"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// applySetTool is the tool that owns an ApplySet. A tool must reject the sets of all others, and kubectl's can be used
// by kubectl and kubectl-lite in turns, like the fields that belong to kubectl's field managers.
const applySetTool = "kubectl"

// forcedDeletion is how long apply --force without --timeout waits until an object is gone that it creates again.
// kubectl waits for no time at all, and fails if the object is not gone at once.
const forcedDeletion = 7 * 24 * time.Hour

// newApply mounts apply with other defaults than kubectl's.
func newApply(s *session.Session) *cobra.Command {
	nameTooling()
	return mount(func(f cmdutil.Factory, streams genericiooptions.IOStreams) *cobra.Command {
		cmd := apply.NewCmdApply(Name, f, streams)
		cmd.ResetFlags()
		flags := apply.NewApplyFlags(streams)
		flags.AddFlags(cmd)
		cmd.Run = func(cmd *cobra.Command, args []string) { runApply(f, cmd, flags, args) }
		return cmd
	})(s)
}

// nameTooling makes apply write the version of its library into ApplySets.
var nameTooling = sync.OnceFunc(func() { apply.ApplySetToolVersion = libraryVersion() })

func runApply(f cmdutil.Factory, cmd *cobra.Command, flags *apply.ApplyFlags, args []string) {
	if !cmd.Flags().Changed("openapi-patch") {
		// The Go types of this binary make the same patches without a document to download and parse.
		flags.OpenAPIPatch = false
	}
	if timeout := flags.DeleteFlags.Timeout; *timeout == 0 {
		*timeout = forcedDeletion
	}
	program := Name
	if flags.ApplySetRef != "" {
		program = applySetTool
	}
	o, err := flags.ToOptions(f, cmd, program, args)
	cmdutil.CheckErr(err)
	cmdutil.CheckErr(o.Validate())
	cmdutil.CheckErr(o.Run())
}
