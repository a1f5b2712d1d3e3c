package apiserver_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/storage/encryption"
	"github.com/coxswain-dev/coxswain/storage/memory"
	"github.com/coxswain-dev/coxswain/testenv/kmstest"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// encryptedEtcd is an etcd and the file with its encryption configuration.
type encryptedEtcd struct {
	t     testing.TB
	below *memory.Backend
	file  string
}

func newEncryptedEtcd(t testing.TB) *encryptedEtcd {
	below := memory.New(memory.Options{})
	t.Cleanup(func() { require.NoError(t, below.Close()) })
	return &encryptedEtcd{t: t, below: below, file: filepath.Join(t.TempDir(), "encryption.yaml")}
}

// AES keys, in base64.
const (
	firstKey  = "{name: first, secret: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}"
	secondKey = "{name: second, secret: Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=}"
	wrongKey  = "{name: first, secret: //////////////////////////////////////////8=}"
)

// configure writes the file: AES-GCM with keys, for resources.
func (e *encryptedEtcd) configure(resources string, keys ...string) {
	e.t.Helper()
	e.provide(resources, fmt.Sprintf("aesgcm: {keys: [%s]}", strings.Join(keys, ", ")))
}

// provide writes the file, with one provider.
func (e *encryptedEtcd) provide(resources, provider string) {
	e.t.Helper()
	text := fmt.Sprintf("{apiVersion: apiserver.config.k8s.io/v1, kind: EncryptionConfiguration, resources: "+
		"[{resources: [%s], providers: [{%s}]}]}", resources, provider)
	require.NoError(e.t, os.WriteFile(e.file+".new", []byte(text), 0o600))
	require.NoError(e.t, os.Rename(e.file+".new", e.file))
}

type unclosed struct{ storage.Backend }

func (unclosed) Close() error { return nil }

// serve starts a server on the etcd. The server watches the file.
func (e *encryptedEtcd) serve() (*storage.Store, kubernetes.Interface, *rest.Config) {
	e.t.Helper()
	b, err := encryption.New(e.t.Context(), unclosed{e.below}, encryption.Options{File: e.file, Reload: true,
		Log: slog.New(slog.DiscardHandler)})
	require.NoError(e.t, err)
	store := servertest.Store(e.t, b, storage.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.Follow(ctx, func(ctx context.Context) { store.Repair(ctx) })
	}()
	e.t.Cleanup(func() {
		cancel()
		<-ended
		require.NoError(e.t, b.Close())
	})
	server := servertest.Start(e.t, apiserver.Options{Store: store})
	return store, server.Client(e.t), server.Config
}

// stored returns the value of a key in etcd.
func (e *encryptedEtcd) stored(path string) string {
	e.t.Helper()
	result, err := e.below.Range(e.t.Context(), storage.RangeRequest{Prefix: path, Limit: 1})
	require.NoError(e.t, err)
	require.Len(e.t, result.KVs, 1)
	return string(result.KVs[0].Value)
}

func newSecret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"password": []byte("x")}}
}

func TestEncryption_AnUpdateThatChangesNothingWritesWithTheNewKey(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := newEncryptedEtcd(t)
	e.configure("secrets", firstKey)
	_, client, _ := e.serve()
	secrets := client.CoreV1().Secrets("default")
	made, err := secrets.Create(ctx, newSecret("a"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(e.stored("core/secrets/default/a"), "k8s:enc:aesgcm:v1:first:"))
	require.NotContains(t, e.stored("core/secrets/default/a"), "password")
	same, err := secrets.Update(ctx, made, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, made.ResourceVersion, same.ResourceVersion)

	e.configure("secrets", secondKey, firstKey)
	written := func(write func() (*corev1.Secret, error)) {
		t.Helper()
		before := made.ResourceVersion
		require.Eventually(t, func() bool {
			made, err = write()
			require.NoError(t, err)
			return made.ResourceVersion != before
		}, patience, 20*time.Millisecond)
		same, err := write()
		require.NoError(t, err)
		require.Equal(t, made.ResourceVersion, same.ResourceVersion, "it is written once")
	}
	written(func() (*corev1.Secret, error) { return secrets.Update(ctx, made, metav1.UpdateOptions{}) })
	require.True(t, strings.HasPrefix(e.stored("core/secrets/default/a"), "k8s:enc:aesgcm:v1:second:"))
	e.configure("secrets", firstKey, secondKey)
	written(func() (*corev1.Secret, error) { // like the controller of StorageVersionMigrations
		return secrets.Patch(ctx, "a", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
	})
	require.True(t, strings.HasPrefix(e.stored("core/secrets/default/a"), "k8s:enc:aesgcm:v1:first:"))
}

func TestEncryption_AnUnreadableObjectIsAnErrorAndOthersAreServed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := newEncryptedEtcd(t)
	e.configure("secrets", firstKey)
	_, client, _ := e.serve()
	_, err := client.CoreV1().Secrets("default").Create(ctx, newSecret("lost"), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().Secrets("kube-system").Create(ctx, newSecret("other"), metav1.CreateOptions{})
	require.NoError(t, err)

	e.configure("secrets", secondKey)
	_, client, admin := e.serve() // after a restart
	secrets := client.CoreV1().Secrets("default")
	good, err := secrets.Create(ctx, newSecret("good"), metav1.CreateOptions{})
	require.NoError(t, err)
	for what, do := range map[string]func() error{
		"get":    func() error { _, err := secrets.Get(ctx, "lost", metav1.GetOptions{}); return err },
		"update": func() error { _, err := secrets.Update(ctx, newSecret("lost"), metav1.UpdateOptions{}); return err },
		"delete": func() error { return secrets.Delete(ctx, "lost", metav1.DeleteOptions{}) },
	} {
		err := do()
		require.True(t, apierrors.IsInternalError(err), "%s: %v", what, err)
		require.ErrorContains(t, err, "k8s:enc:aesgcm:v1:first:", what)
	}
	_, err = secrets.Create(ctx, newSecret("lost"), metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	_, err = secrets.List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsStoreReadError(err), "%v", err)
	require.ErrorContains(t, err, "failed to read one or more secrets from the storage")
	_, err = secrets.Watch(ctx, metav1.ListOptions{SendInitialEvents: new(true), AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	require.True(t, apierrors.IsInternalError(err), "%v", err)
	require.Error(t, secrets.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))

	watching, err := secrets.Watch(ctx, metav1.ListOptions{ResourceVersion: good.ResourceVersion})
	require.NoError(t, err)
	defer watching.Stop()
	_, err = secrets.Create(ctx, newSecret("better"), metav1.CreateOptions{})
	require.NoError(t, err)
	event := <-watching.ResultChan()
	if event.Type == watch.Modified { // the first server has read the file, too, and reads the objects again
		event = <-watching.ResultChan()
	}
	require.Equal(t, "better", event.Object.(*corev1.Secret).Name)
	_, err = secrets.Get(ctx, "good", metav1.GetOptions{})
	require.NoError(t, err)

	deleteUnread(t, client, admin)
	_, err = secrets.Get(ctx, "lost", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	_, err = secrets.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsStoreReadError(err), "%v", err)

	e.configure("secrets", secondKey, firstKey) // the key has been restored
	require.Eventually(t, func() bool {
		_, err = client.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
		return err == nil
	}, patience, 20*time.Millisecond)
}

// deleteUnread deletes the Secret lost, and checks that a readable Secret cannot be deleted that way.
func deleteUnread(t *testing.T, client kubernetes.Interface, admin *rest.Config) {
	t.Helper()
	ctx := t.Context()
	_, err := client.RbacV1().Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "deleter"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"},
			Verbs: []string{"delete", "deletecollection"}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.RbacV1().RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "deleter"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "deleter"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "jane"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	as := rest.CopyConfig(admin)
	as.Impersonate.UserName = "jane"
	jane, err := kubernetes.NewForConfig(as)
	require.NoError(t, err)
	options := metav1.DeleteOptions{IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}
	err = jane.CoreV1().Secrets("default").Delete(ctx, "lost", options)
	require.True(t, apierrors.IsForbidden(err), "%v", err)
	require.ErrorContains(t, err, `not permitted to do "unsafe-delete-ignore-read-errors"`)

	secrets := client.CoreV1().Secrets("default")
	for what, err := range map[string]error{
		"readable":         secrets.Delete(ctx, "good", options),
		"there is none":    secrets.Delete(ctx, "nothing", options),
		"deletecollection": secrets.DeleteCollection(ctx, options, metav1.ListOptions{}),
		"dry run": secrets.Delete(ctx, "lost", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll},
			IgnoreStoreReadErrorWithClusterBreakingPotential: new(true)}),
	} {
		require.True(t, apierrors.IsInvalid(err), "%s: %v", what, err)
	}
	require.NoError(t, secrets.Delete(ctx, "lost", options))
}

// A server that can decrypt no object starts, and serves all objects when the key is restored.
func TestEncryption_AServerStartsWithoutReadableObjects(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	e := newEncryptedEtcd(t)
	e.configure(`"*.*"`, firstKey)
	_, client, _ := e.serve()
	_, err := client.CoreV1().Secrets("default").Create(ctx, newSecret("a"), metav1.CreateOptions{})
	require.NoError(t, err)
	result, err := e.below.Range(ctx, storage.RangeRequest{})
	require.NoError(t, err)
	for _, kv := range result.KVs {
		require.True(t, bytes.HasPrefix(kv.Value, []byte("k8s:enc:")) || strings.HasPrefix(kv.Path, "claims/"), kv.Path)
	}

	e.configure(`"*.*"`, wrongKey)
	_, client, _ = e.serve()
	_, err = client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
	require.True(t, apierrors.IsInternalError(err), "%v", err)
	e.configure(`"*.*"`, wrongKey, firstKey)
	require.Eventually(t, func() bool {
		got, err := client.CoreV1().Secrets("default").Get(ctx, "a", metav1.GetOptions{})
		return err == nil && string(got.Data["password"]) == "x"
	}, patience, 20*time.Millisecond)
}

func TestReadyChecks_ArePartsOfReadyz(t *testing.T) {
	t.Parallel()
	failure := make(chan error, 1)
	failure <- fmt.Errorf("the plugin is ill")
	server := servertest.Start(t, apiserver.Options{ReadyChecks: []apiserver.ReadyCheck{{Name: "kms-providers",
		Run: func(context.Context) error {
			select {
			case err := <-failure:
				return err
			default:
				return nil
			}
		}}}})
	s := connect(t, server.Config)
	require.Equal(t, http.StatusInternalServerError, s.do(http.MethodGet, "/readyz/kms-providers", nil).code)
	require.Equal(t, http.StatusOK, s.do(http.MethodGet, "/readyz/kms-providers", nil).code)
	require.Contains(t, string(s.do(http.MethodGet, "/readyz?verbose", nil).body), "[+]kms-providers ok")
}

// BenchmarkEncryptedCreate creates Secrets of 1 kB over HTTP/2, on a backend in memory; "none" has the provider
// identity.
func BenchmarkEncryptedCreate(b *testing.B) {
	dir := b.TempDir()
	stop, err := kmstest.Start(dir)
	require.NoError(b, err)
	defer stop()
	for _, c := range []struct{ name, provider string }{
		{"none", "identity: {}"},
		{"aesgcm", "aesgcm: {keys: [" + firstKey + "]}"},
		{"kms", fmt.Sprintf("kms: {apiVersion: v2, name: plugin, endpoint: 'unix://%s/%s'}", dir, kmstest.Socket)},
	} {
		b.Run(c.name, func(b *testing.B) {
			e := newEncryptedEtcd(b)
			e.provide("secrets", c.provider)
			_, client, _ := e.serve()
			secrets := client.CoreV1().Secrets("default")
			value := map[string][]byte{"a": bytes.Repeat([]byte("x"), 750)}
			began := processorTime(b)
			for i := 0; b.Loop(); i++ {
				s := newSecret(fmt.Sprint("s", i))
				s.Data = value
				_, err := secrets.Create(b.Context(), s, metav1.CreateOptions{})
				require.NoError(b, err)
			}
			b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// processorTime returns the CPU time of the process, client and server, in nanoseconds. On a busy machine it is more
// meaningful than the elapsed time.
func processorTime(b *testing.B) int64 {
	var used syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return used.Utime.Nano() + used.Stime.Nano()
}
