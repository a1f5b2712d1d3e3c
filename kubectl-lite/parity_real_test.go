//go:build e2e

package kubectllite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
	"github.com/coxswain-dev/coxswain/testenv"
)

var record = flag.Bool("record", false, "write what the real kubectl does to "+recordedPath)

// TestParity_RecordingIsTrueToKubectl runs the steps of TestParity by the real kubectl, on a server of its own, and
// compares them with the recording that TestParity relies on.
func TestParity_RecordingIsTrueToKubectl(t *testing.T) {
	t.Parallel()
	theirs := runParity(t, aloneOn(t, testenv.Start(t, testenv.APIServerOnly())), kubectlRunner(t))
	if *record {
		text, err := json.MarshalIndent(theirs, "", " ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(recordedPath, append(text, '\n'), 0o644))
	}
	was := recorded(t)
	require.Len(t, theirs, len(was), renew)
	for i := range was {
		assert.Equal(t, was[i], theirs[i], was[i].Args)
	}
}

// kubectlRunner returns a runner for the kubectl of make parity. It has the release of kubectl-lite's library, because
// other releases print other texts.
func kubectlRunner(t *testing.T) parityRunner {
	t.Helper()
	path := os.Getenv("KUBECTL")
	require.NotEmpty(t, path, "make parity sets KUBECTL")
	return func(t *testing.T, kubeconfig, dir, stdin string, args []string) clitest.Outcome {
		var out, errOut bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
		defer cancel()
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG="+kubeconfig, "KUBECTL_KUBERC=false")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errOut
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("run kubectl: %v", err)
		}
		return clitest.Outcome{Code: cmd.ProcessState.ExitCode(), Out: out.String(), ErrOut: errOut.String()}
	}
}

// TestParity_OnARealServer runs the steps of TestParity against an external server, such as kube-apiserver. Its user
// must be allowed to create namespaces, cluster roles, priority classes and certificate requests. The steps run in
// their own namespaces, by kubectl twice and by kubectl-lite once. Steps with different results for kubectl's two runs,
// because controllers change the objects, are not compared.
func TestParity_OnARealServer(t *testing.T) {
	path := testenv.ExternalKubeconfig(t)
	t.Parallel()
	server := openShared(t, path)
	version, err := server.client.Discovery().ServerVersion()
	require.NoError(t, err)
	t.Logf("%s, %s; left out: get --at, timeline and ttl, which kubectl has not, and %q, which concern others",
		server.config.Host, version.GitVersion, sortedKeys(unfitForShared))

	kubectl := kubectlRunner(t)
	theirs, again := server.parity(t, kubectl), server.parity(t, kubectl)
	ours := server.parity(t, liteRunner)
	total, fickle := len(ours), map[string]bool{}
	for i := range theirs {
		if !assert.ObjectsAreEqual(theirs[i], again[i]) {
			fickle[theirs[i].Args] = true
		}
	}
	drop := func(o parityOutcome) bool { return fickle[o.Args] }
	theirs, ours = slices.DeleteFunc(theirs, drop), slices.DeleteFunc(ours, drop)
	t.Logf("%d of %d steps compared; kubectl does not do these twice alike: %q", len(ours), total, sortedKeys(fickle))
	require.Greater(t, len(ours), total*3/4, "too much changes by itself on this server to compare anything")
	requireParity(t, theirs, ours)
}

// unfitForShared are steps that would disturb other users of a server, or have an output that depends on them.
var unfitForShared = map[string]bool{
	"taint nodes --all a=b:NoSchedule": true,
	"top nodes":                        true,
}

// sharedServer is a server with other users: the steps have their own namespaces.
type sharedServer struct {
	file   *clientcmdapi.Config
	config *rest.Config
	client kubernetes.Interface
	any    dynamic.Interface
}

// openShared reads a kubeconfig's current context, and gives it the names in the steps.
func openShared(t *testing.T, path string) *sharedServer {
	t.Helper()
	file, err := clientcmd.LoadFromFile(path)
	require.NoError(t, err)
	require.NoError(t, clientcmdapi.MinifyConfig(file))
	require.NoError(t, clientcmdapi.FlattenConfig(file))
	for _, context := range file.Contexts {
		file.Clusters = map[string]*clientcmdapi.Cluster{"test": file.Clusters[context.Cluster]}
		file.AuthInfos = map[string]*clientcmdapi.AuthInfo{"test": file.AuthInfos[context.AuthInfo]}
	}
	config, err := clientcmd.NewDefaultClientConfig(*withContext(file, ""), &clientcmd.ConfigOverrides{}).ClientConfig()
	require.NoError(t, err)
	config.QPS, config.Burst = 50, 100
	return &sharedServer{file, config, kubernetes.NewForConfigOrDie(config), dynamic.NewForConfigOrDie(config)}
}

// withContext returns the kubeconfig with only the context "test", in a namespace.
func withContext(file *clientcmdapi.Config, namespace string) *clientcmdapi.Config {
	file = file.DeepCopy()
	file.Contexts = map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "test", Namespace: namespace}}
	file.CurrentContext = "test"
	return file
}

var (
	// defaultNamespace matches the namespace of the steps.
	defaultNamespace = regexp.MustCompile(`(namespace=|ns |"namespace": ")default\b`)
	// sharedNames are the names in the steps of objects without a namespace, and the namespace shop.
	sharedNames = regexp.MustCompile(`\b(shop|viewers?|high|ann|solo)\b`)
	// everywhere makes a step read the namespaces of other users.
	everywhere = regexp.MustCompile(` (-A|--all-namespaces)\b`)
	// sharedAge also matches ages that are longer than a test.
	sharedAge = regexp.MustCompile(`\b(\d+[ydhms]){1,2}\b`)
	// anyIP is an address of any network.
	anyIP = regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+\b`)
	// madeUp matches names with a suffix of a controller.
	madeUp = regexp.MustCompile(`\b(web|many|plain|nightly)-[a-z0-9]{8,10}(-[a-z0-9]{5})?\b`)
)

// parity runs the steps with unique names, and deletes all their objects.
func (s *sharedServer) parity(t *testing.T, run parityRunner) []parityOutcome {
	t.Helper()
	suffix := "-" + rand.String(8)
	namespace := "default" + suffix
	defer s.clean(t, suffix)
	_, err := s.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.awaitServiceAccount(t, namespace)
	host, err := url.Parse(s.config.Host)
	require.NoError(t, err)
	return runParity(t, parityPlace{
		kubeconfig: withContext(s.file, namespace),
		host:       host.Scheme + "://" + host.Host,
		unfit:      unfitForShared,
		own: func(text string) string {
			text = everywhere.ReplaceAllString(defaultNamespace.ReplaceAllString(text, "${1}"+namespace), "")
			return sharedNames.ReplaceAllString(text, "$1"+suffix)
		},
		plain: func(text string) string {
			// first, because parts of a UID look like ages
			text = unstable[0].pattern.ReplaceAllString(strings.ReplaceAll(text, suffix, ""), "UID")
			text = anyIP.ReplaceAllString(text, "127.0.0.1")
			return madeUp.ReplaceAllString(sharedAge.ReplaceAllString(text, "1s"), "$1-HASH")
		},
	}, run)
}

// awaitServiceAccount waits until controllers have made the service account and the CA of a namespace. If the server
// has no controllers (a kube-apiserver alone), it creates the account that pods need.
func (s *sharedServer) awaitServiceAccount(t *testing.T, namespace string) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 5*time.Second, true,
		func(ctx context.Context) (bool, error) {
			_, noAccount := s.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
			_, noRoot := s.client.CoreV1().ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
			return noAccount == nil && noRoot == nil, nil
		})
	if err == nil {
		return
	}
	t.Log("this server runs no controllers")
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err = s.client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{})
	require.True(t, err == nil || apierrors.IsAlreadyExists(err), "%v", err)
}

// clean deletes all objects with names that end with the suffix.
func (s *sharedServer) clean(t *testing.T, suffix string) {
	t.Helper()
	for _, kind := range []schema.GroupVersionResource{
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
		{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
		{Group: "certificates.k8s.io", Version: "v1", Resource: "certificatesigningrequests"},
		{Version: "v1", Resource: "nodes"},
		{Version: "v1", Resource: "namespaces"},
	} {
		list, err := s.any.Resource(kind).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, obj := range list.Items {
			if !strings.HasSuffix(obj.GetName(), suffix) {
				continue
			}
			err := s.any.Resource(kind).Delete(t.Context(), obj.GetName(), metav1.DeleteOptions{})
			require.True(t, err == nil || apierrors.IsNotFound(err), "%v", err)
			if kind.Resource == "namespaces" {
				s.awaitGone(t, obj.GetName())
			}
		}
	}
}

// awaitGone waits until a namespace is gone. If the server has no controllers (a kube-apiserver alone), it deletes the
// namespace's content itself.
func (s *sharedServer) awaitGone(t *testing.T, namespace string) {
	t.Helper()
	deleted := func(ctx context.Context) (bool, error) {
		_, err := s.client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	}
	if wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 30*time.Second, true, deleted) == nil {
		return
	}
	lists, err := s.client.Discovery().ServerPreferredNamespacedResources()
	require.True(t, err == nil || discovery.IsGroupDiscoveryFailedError(err), "%v", err)
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"deletecollection"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		require.NoError(t, err)
		for _, r := range list.APIResources {
			now := int64(0)
			// A failure shows below: the namespace stays.
			_ = s.any.Resource(version.WithResource(r.Name)).Namespace(namespace).DeleteCollection(t.Context(),
				metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		}
	}
	left, err := s.client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
	require.NoError(t, err)
	left.Spec.Finalizers = nil
	_, err = s.client.CoreV1().Namespaces().Finalize(t.Context(), left, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.NoError(t, wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 30*time.Second, true, deleted),
		"%s is still there", namespace)
}
