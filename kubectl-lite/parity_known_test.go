package kubectllite

// knownDifferences are invocations with a different output, and the reason in the words of docs/kubectl-lite.md. Their
// exit codes are equal, except for the ones in knownCodes.
var knownDifferences = map[string]string{
	"get cm --sort-by=.nope":      "kubectl drops the error and reports that no resources were found.",
	"auth reconcile --filename=-": "kubectl 1.37 crashes.",
	"diff --server-side -f DIR/kept.yaml": "kubectl takes a conflict for an object that " +
		"keeps changing, and prints that before it reports the conflict.",

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

// knownCodes are the known differences with a different exit code.
var knownCodes = map[string]bool{
	"get cm --sort-by=.nope":      true,
	"auth reconcile --filename=-": true,
}
