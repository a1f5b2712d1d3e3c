package kubectllite

// knownDifferences are invocations whose text differs, with the reason as docs/kubectl-lite.md gives it. The exit codes of
// most of them are equal all the same; those that are not are in knownCodes.
var knownDifferences = map[string]string{
	"get pods -o nope": "The list of formats has `kyaml`, which kubectl got after 1.33.",
	"get pods -w --output-watch-events=false -o nope":  "The list of formats has `kyaml`, which kubectl got after 1.33.",
	"get cm --sort-by=.nope":                           "kubectl swallows the error and says that nothing was found.",
	"apply -f - --dry-run=client":                      "kubectl after 1.33 carries the patch out locally and so knows that nothing changes.",
	"scale deploy/nope --replicas=1":                   "kubectl after 1.33 passes on the server's error.",
	"rollout undo deploy/web":                          "kubectl after 1.33 warns when an applied object is rolled back.",
	"describe pod on":                                  "kubectl after 1.33 leaves out events where it describes several objects or searches by prefix.",
	"describe cm kept bare":                            "kubectl after 1.33 leaves out events where it describes several objects or searches by prefix.",
	"describe sa robot":                                "kubectl after 1.33 leaves out a service account's secrets and tokens where it has none.",
	"describe cronjob nightly":                         "kubectl after 1.33 shows the time zone.",
	"config view":                                      "kubectl after 1.33 no longer writes the empty `preferences`.",
	"config view --kubeconfig=DIR/other --raw -o json": "kubectl after 1.33 no longer writes the empty `preferences`.",

	"set":         ownHelp,
	"options":     ownHelp,
	"auth":        ownHelp,
	"rollout":     ownHelp,
	"certificate": ownHelp,
	"config set-cluster --kubeconfig=DIR/other":         ownHelp,
	"config rename-context two --kubeconfig=DIR/other":  ownHelp,
	"config set current-context --kubeconfig=DIR/other": ownHelp,
	"config use-context --kubeconfig=DIR/other":         ownHelp,

	"run lone --image=busybox --port=80 --expose":                  "kubectl after 1.33 names the pod first.",
	"run lone --image=Bad:Image:Name":                              runWords,
	"run --image=busybox":                                          runWords,
	"run lone2 --image=busybox --restart=Sometimes":                runWords,
	"run lone2 --image=busybox --image-pull-policy=Sometimes":      runWords,
	"run lone2 --image=busybox --rm":                               runWords,
	"run lone2 --image=busybox -t":                                 runWords,
	"run lone2 --image=busybox --expose":                           runWords,
	"run lone2 --image=busybox --port=http":                        runWords,
	"run lone2 --image=busybox -i --dry-run=client":                runWords,
	"exec lone -- date":                                            "client-go after 1.33 reports a refused upgrade in words of its own.",
	"exec lone -c nope -- date":                                    containerWords,
	"logs lone -c nope":                                            containerWords,
	"set env deploy/web":                                           "kubectl does nothing where no variable is given.",
	"set resources deploy web --limits=cpu":                        "kubectl after 1.33 begins `invalid argument syntax` with a small letter in `set resources`.",
	"apply view-last-applied svc inner":                            "kubectl says nothing of an object that was never applied, and ends with 0.",
	"diff --server-side -f DIR/kept.yaml":                          "kubectl takes a conflict for an object that keeps changing, and says so before it reports the conflict.",
	"patch cm kept -p '{\"data\":{\"p\":\"q\"}}' --dry-run=server": patchWords,
	"patch cm kept -p '{\"data\":{\"p\":\"q\"}}' --dry-run=client": patchWords,
}

const (
	ownHelp        = "The help pages are its own."
	runWords       = "kubectl after 1.33 speaks of wrong flags of `run` in other words, and no longer points at its help page."
	containerWords = "kubectl after 1.33 looks for the container itself, and lists those that there are."
	patchWords     = "kubectl's `patch` does not say that it was a dry run."
)

// knownCodes are the known differences that reach the exit code.
var knownCodes = map[string]bool{
	"get cm --sort-by=.nope":            true,
	"set env deploy/web":                true,
	"apply view-last-applied svc inner": true,
}
