package kubectllite

// knownDifferences are invocations whose text differs, with the reason as docs/kubectl-lite.md gives it. The
// exit codes of most of them are equal all the same; those that are not are in knownCodes.
var knownDifferences = map[string]string{
	"get cm --sort-by=.nope":      "kubectl swallows the error and says that nothing was found.",
	"auth reconcile --filename=-": "kubectl 1.37 crashes.",
	"diff --server-side -f DIR/kept.yaml": "kubectl takes a conflict for an object that " +
		"keeps changing, and says so before it reports the conflict.",

	"set":         ownHelp,
	"options":     ownHelp,
	"auth":        ownHelp,
	"rollout":     ownHelp,
	"certificate": ownHelp,
	"config set-cluster --kubeconfig=DIR/other":         ownHelp,
	"config rename-context two --kubeconfig=DIR/other":  ownHelp,
	"config set current-context --kubeconfig=DIR/other": ownHelp,
	"config use-context --kubeconfig=DIR/other":         ownHelp,
}

const ownHelp = "The help pages are its own."

// knownCodes are the known differences that reach the exit code.
var knownCodes = map[string]bool{
	"get cm --sort-by=.nope":      true,
	"auth reconcile --filename=-": true,
}
