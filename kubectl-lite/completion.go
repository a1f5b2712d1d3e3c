package kubectllite

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coxswain-dev/coxswain/kubectl-lite/session"
)

// completer proposes the next word of the command line, after args.
type completer func(s *session.Session, args []string, begun string) []string

// proposals pairs commands with their completers. A verb that is not listed takes only flags or files. Cobra's
// completion scripts for bash, zsh, fish and PowerShell ask for it.
var proposals = []struct {
	take     completer
	commands []string
}{
	{kindsAndNames, []string{"get", "describe", "delete", "tree", "why", "timeline", "ttl", "label", "annotate",
		"patch", "edit", "wait",
		"apply view-last-applied", "apply edit-last-applied", "set env", "set image", "set resources",
		"set serviceaccount", "set subject"}},
	{kindsOnly, []string{"explain"}},
	{namesOf("deployments", "statefulsets", "daemonsets"), []string{"rollout status", "rollout history", "rollout undo",
		"rollout restart"}},
	{namesOf("deployments"), []string{"rollout pause", "rollout resume"}},
	{namesOf("deployments", "replicasets", "statefulsets", "replicationcontrollers"), []string{"scale", "autoscale"}},
	{namesOf("pods", "services", "deployments", "replicasets", "replicationcontrollers"), []string{"expose"}},
	{namesOf("services"), []string{"set selector"}},
	{podsOrNames, []string{"logs", "exec", "attach", "debug", "port-forward"}},
	{plainNamesOf("pods", ":"), []string{"cp"}},
	{plainNamesOf("nodes", ""), []string{"cordon", "uncordon", "drain", "top node"}},
	{plainNamesOf("pods", ""), []string{"top pod"}},
	{plainNamesOf("certificatesigningrequests", ""), []string{"certificate approve", "certificate deny"}},
	{plainNamesOf("serviceaccounts", ""), []string{"create token"}},
	{contextNames, []string{"config use-context", "config rename-context", "config delete-context",
		"config get-contexts", "config set-context"}},
	{clusterNames, []string{"config delete-cluster", "config set-cluster"}},
	{userNames, []string{"config delete-user", "config set-credentials"}},
}

// flagProposals are the completers of flags, wherever they are declared.
var flagProposals = map[string]completer{
	"namespace": plainNamesOf("namespaces", ""),
	"context":   contextNames,
	"cluster":   clusterNames,
	"user":      userNames,
	"container": containersOfPod,
}

// addCompletions registers the completers of all commands and flags.
func addCompletions(root *cobra.Command, s *session.Session) {
	ours := map[*cobra.Command]bool{}
	for _, p := range proposals {
		for _, path := range p.commands {
			cmd, rest, err := root.Find(strings.Fields(path))
			if err != nil || len(rest) > 0 {
				panic("completion of an unknown command: " + path)
			}
			cmd.ValidArgsFunction = completing(s, p.take)
			ours[cmd] = true
		}
	}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.ValidArgsFunction != nil && !ours[cmd] {
			cmd.ValidArgsFunction = typable(cmd.ValidArgsFunction)
		}
		for name, take := range flagProposals {
			if cmd.PersistentFlags().Lookup(name) != nil || cmd.Flags().Lookup(name) != nil {
				_ = cmd.RegisterFlagCompletionFunc(name, completing(s, take)) // fails where it is registered already
			}
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(root)
}

// completing makes a function for cobra from a completer. It never proposes files. No space follows proposals such as
// "web-0:" and "deploy/", which are incomplete words.
func completing(s *session.Session, take completer) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if file := cmd.Flag("kubeconfig"); file != nil { // config has a flag of that name of its own
			*s.Flags.KubeConfig = file.Value.String()
		}
		var fitting []string
		directive := cobra.ShellCompDirectiveNoFileComp
		for _, proposal := range take(s, args, begun) {
			if !strings.HasPrefix(proposal, begun) || slices.Contains(args, proposal) || !canBeTyped(proposal) {
				continue
			}
			fitting = append(fitting, proposal)
			if strings.HasSuffix(proposal, "/") || strings.HasSuffix(proposal, ":") {
				directive |= cobra.ShellCompDirectiveNoSpace
			}
		}
		return fitting, directive
	}
}

// typable removes the proposals of a mounted command that cannot be typed (canBeTyped).
func typable(propose cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		proposals, directive := propose(cmd, args, begun)
		return slices.DeleteFunc(proposals, func(proposal string) bool {
			word, _, _ := strings.Cut(proposal, "\t")
			return !canBeTyped(word)
		}), directive
	}
}

// canBeTyped reports whether a proposal needs no quotes in any shell, except for spaces. Shells insert the common
// prefix of several proposals without quotes, and evaluate the line at the next completion. Therefore a proposal must
// not be one that a shell would expand or run, or take for a flag or a message.
func canBeTyped(proposal string) bool {
	for i, r := range proposal {
		letter := unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '.'
		if !letter && (i == 0 || !strings.ContainsRune("-:/@+=,% ", r)) {
			return false
		}
	}
	return proposal != "" && !strings.HasPrefix(proposal, "_activeHelp_")
}

// completionTimeout limits the time of a completion. A server that does not answer must not block the prompt.
const completionTimeout = 3 * time.Second

// namesIn returns the names of a kind's objects, in the namespace of the flags so far.
func namesIn(s *session.Session, resource string) []string {
	mapping, err := s.MappingFor(resource)
	if err != nil {
		return nil
	}
	return objectNames(s, mapping.Resource, mapping.Scope.Name() == "namespace")
}

func objectNames(s *session.Session, resource schema.GroupVersionResource, namespaced bool) []string {
	config, err := s.ToRESTConfig()
	if err != nil {
		return nil
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil
	}
	var from metadata.ResourceInterface = client.Resource(resource)
	if namespaced {
		namespace, _, err := s.Namespace()
		if err != nil {
			return nil
		}
		from = client.Resource(resource).Namespace(namespace)
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	list, err := from.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil
	}
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
	}
	return names
}

// kindNames returns the resources that can be read, in the form "pods", "deployments.apps".
func kindNames(s *session.Session) []string {
	client, err := s.ToDiscoveryClient()
	if err != nil {
		return nil
	}
	lists, _ := client.ServerPreferredResources() // some may be missing while an extension server is down
	var names []string
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			continue
		}
		for _, r := range list.APIResources {
			if slices.Contains(r.Verbs, "get") && !strings.Contains(r.Name, "/") {
				names = append(names, schema.GroupResource{Group: gv.Group, Resource: r.Name}.String())
			}
		}
	}
	slices.Sort(names)
	return names
}

func kindsOnly(s *session.Session, args []string, _ string) []string {
	if len(args) > 0 {
		return nil
	}
	return kindNames(s)
}

// kindsAndNames completes "TYPE NAME..." and "TYPE/NAME...".
func kindsAndNames(s *session.Session, args []string, begun string) []string {
	kind, _, slash := strings.Cut(begun, "/")
	switch {
	case slash:
		return prefixed(kind+"/", namesIn(s, kind))
	case len(args) == 0:
		return kindNames(s)
	case strings.Contains(args[0], "/"):
		return suffixed(kindNames(s), "/")
	}
	return namesIn(s, args[0])
}

// namesOf returns a completer like kindsAndNames, for some kinds only.
func namesOf(kinds ...string) completer {
	return func(s *session.Session, args []string, begun string) []string {
		if len(args) == 0 && !strings.Contains(begun, "/") {
			return slices.Concat(kinds, suffixed(kinds, "/"))
		}
		return kindsAndNames(s, args, begun)
	}
}

// plainNamesOf returns a completer of names without their kind.
func plainNamesOf(resource, suffix string) completer {
	return func(s *session.Session, _ []string, _ string) []string { return suffixed(namesIn(s, resource), suffix) }
}

// podsOrNames completes a pod, or the TYPE/NAME of a kind that has pods.
func podsOrNames(s *session.Session, args []string, begun string) []string {
	switch {
	case len(args) > 0:
		return nil
	case strings.Contains(begun, "/"):
		return kindsAndNames(s, args, begun)
	}
	return append(namesIn(s, "pods"), "deployments/", "services/", "statefulsets/", "daemonsets/",
		"replicasets/", "jobs/")
}

// containersOfPod completes the containers of the pod in the arguments.
func containersOfPod(s *session.Session, args []string, _ string) []string {
	if len(args) == 0 {
		return nil
	}
	client, err := s.KubernetesClientSet()
	if err != nil {
		return nil
	}
	namespace, _, err := s.Namespace()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
	defer cancel()
	pod, err := client.CoreV1().Pods(namespace).Get(ctx, strings.TrimPrefix(args[0], "pod/"), metav1.GetOptions{})
	if err != nil {
		return nil
	}
	var names []string
	for _, c := range slices.Concat([]corev1.Container{}, pod.Spec.Containers, pod.Spec.InitContainers) {
		names = append(names, c.Name)
	}
	return names
}

func configKeys(s *session.Session, keys func(*clientcmdapi.Config) []string) []string {
	config, err := s.ToRawKubeConfigLoader().ConfigAccess().GetStartingConfig()
	if err != nil {
		return nil
	}
	return keys(config)
}

func contextNames(s *session.Session, _ []string, _ string) []string {
	return configKeys(s, func(c *clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Contexts)) })
}

func clusterNames(s *session.Session, _ []string, _ string) []string {
	return configKeys(s, func(c *clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.Clusters)) })
}

func userNames(s *session.Session, _ []string, _ string) []string {
	return configKeys(s, func(c *clientcmdapi.Config) []string { return slices.Sorted(maps.Keys(c.AuthInfos)) })
}

func prefixed(with string, names []string) []string {
	all := make([]string, len(names))
	for i := range names {
		all[i] = with + names[i]
	}
	return all
}

func suffixed(names []string, with string) []string {
	all := make([]string, len(names))
	for i := range names {
		all[i] = names[i] + with
	}
	return all
}
