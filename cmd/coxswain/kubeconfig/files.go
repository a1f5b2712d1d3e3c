package kubeconfig

import (
	"os"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
)

// CredentialFiles returns the existing files with a component's credentials: its kubeconfig, the files that the
// kubeconfig refers to, and the token of a pod's ServiceAccount.
func CredentialFiles(file string) []string {
	files := []string{"/var/run/secrets/kubernetes.io/serviceaccount"}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = file
	files = append(files, rules.GetLoadingPrecedence()...)
	if kubeconfig, err := rules.Load(); err == nil { // if it cannot be loaded, Open returns the error
		for _, user := range kubeconfig.AuthInfos {
			files = append(files, user.LocationOfOrigin, user.ClientKey, user.TokenFile)
		}
	}
	slices.Sort(files)
	return slices.DeleteFunc(slices.Compact(files), func(path string) bool {
		_, err := os.Stat(path)
		return err != nil
	})
}
