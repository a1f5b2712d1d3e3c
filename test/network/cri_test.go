//go:build e2e && linux

package network

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sandboxImage is the image of sandboxes, built FROM scratch: there is no registry.
const sandboxImage = "coxswain.test/pause:1"

// withCRI configures containerd for kubelets. Sandboxes are on the daemon's network.
const withCRI = `disabled_plugins = ["io.containerd.internal.v1.opt"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + sandboxImage + `"
disable_apparmor = true
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "DIR/bin"
conf_dir = "DIR/net.d"`

// A sandbox starts only once the pod's policies are in the kernel, although the API does not show its address.
func TestCRI_SandboxesStartOnceTheirPoliciesAreInForce(t *testing.T) {
	t.Parallel()
	need(t)
	needContainerd(t)
	c, err := startClusterOf(nodes[:2], nil, "--network-mode", "vxlan")
	require.NoError(t, err)
	t.Cleanup(c.close)
	s := c.space(t)
	s.foreignNode()
	e := s.startContainerd(withCRI)
	e.startDaemon()
	e.waitForConfiguration()
	e.waitForDaemon()
	e.importSandboxImage()
	kubelet := e.connectCRI()
	s.pause("client")
	s.run("api", "api", on("a-0", idle()))
	s.onlyFrom("web", "api")

	// The client sends requests from before the start of the sandbox until a while after it.
	until := make(chan struct{})
	asks := s.untilClosed(until, "get", "-until-eof", "-every", "2ms", "-timeout", "100ms",
		"http://10.244.13.2:8080/hostname")
	web := s.boundPod("web", "web")
	require.NoError(t, kubelet.run(web))
	require.Equal(t, "10.244.13.2", kubelet.address("web"))
	s.answers("api", "http://10.244.13.2:8080/hostname", "web")
	begun, _ := outcomes(asks.out.String())
	s.eventually("the client asks on", func() error {
		if total, _ := outcomes(asks.out.String()); total < begun+20 {
			return fmt.Errorf("%d questions", total-begun)
		}
		return nil
	})
	close(until)
	require.Error(t, <-asks.ended)
	total, failures := outcomes(asks.out.String())
	require.Len(t, failures, total, "an answer to a client that the policy does not allow")

	unknown := web.DeepCopy()
	unknown.Name, unknown.UID = "unknown", "00000000-0000-0000-0000-000000000000"
	require.ErrorContains(t, kubelet.run(unknown), "the API server has no pod "+s.name+"/unknown")
	again := web.DeepCopy()
	again.UID = unknown.UID
	require.ErrorContains(t, kubelet.run(again), "network policies of pod "+s.name+"/web are not in force")

	late := s.boundPod("late", "web")
	e.processes["cni"].kill()
	require.ErrorContains(t, kubelet.run(late), "coxswain cni serve does not run, or is not ready")
	e.startDaemon()
	e.waitForDaemon()
	require.NoError(t, kubelet.run(late))
	s.answers("api", "http://"+kubelet.address("late")+":8080/hostname", "late")
	kubelet.stopAll()
	require.Empty(t, e.addresses())
}

// boundPod creates a pod on the foreign Node. Its status stays empty.
func (s *space) boundPod(name, label string) *corev1.Pod {
	s.Helper()
	s.create(name, label, on(foreign, corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "netexec"}}}))
	pods := s.client.CoreV1().Pods(s.name)
	s.Cleanup(func() { _ = pods.Delete(context.Background(), name, *metav1.NewDeleteOptions(0)) })
	pod, err := pods.Get(s.Context(), name, metav1.GetOptions{})
	require.NoError(s, err)
	return pod
}

// importSandboxImage imports an image with one layer, which contains the server program.
func (e *containerd) importSandboxImage() {
	e.Helper()
	program, err := os.ReadFile(netexec)
	require.NoError(e, err)
	layer := archive(e, map[string][]byte{"netexec": program})
	config, err := json.Marshal(map[string]any{"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/netexec", "serve"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}}})
	require.NoError(e, err)
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{sandboxImage},
		"Layers": []string{"layer.tar"}}})
	require.NoError(e, err)
	file := filepath.Join(e.dir, "image.tar")
	require.NoError(e, os.WriteFile(file, archive(e, map[string][]byte{"manifest.json": manifest,
		"config.json": config, "layer.tar": layer}), 0o644))
	_, err = e.ctr("-n", "k8s.io", "images", "import", "--snapshotter", "native", file)
	require.NoError(e, err)
}

func archive(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, content := range files {
		require.NoError(t, w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(content))}))
		_, err := w.Write(content)
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return out.Bytes()
}

// cri is a client of the Container Runtime Interface, like a kubelet. It encodes messages field by field, with the
// field numbers of k8s.io/cri-api/pkg/apis/runtime/v1.
type cri struct {
	*containerd
	conn      *grpc.ClientConn
	sandboxes map[string]string // their IDs by the names of pods
}

func (e *containerd) connectCRI() *cri {
	e.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(e.dir, "grpc"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})))
	require.NoError(e, err)
	k := &cri{e, conn, map[string]string{}}
	e.Cleanup(func() { k.stopAll(); _ = conn.Close() })
	return k
}

// rawCodec sends and receives messages as bytes.
type rawCodec struct{}

func (rawCodec) Name() string                       { return "proto" }
func (rawCodec) Marshal(v any) ([]byte, error)      { return *v.(*[]byte), nil }
func (rawCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }

func (k *cri) call(method string, request []byte) ([]byte, error) {
	var response []byte
	err := k.conn.Invoke(context.Background(), "/runtime.v1.RuntimeService/"+method, &request, &response)
	return response, err
}

// run starts the sandbox of a pod.
func (k *cri) run(pod *corev1.Pod) error {
	metadata := texts(1, pod.Name, 2, string(pod.UID), 3, pod.Namespace)
	config := texts(1, string(metadata), 2, pod.Name, 3, filepath.Join(k.dir, "logs"), 8, "")
	response, err := k.call("RunPodSandbox", texts(1, string(config)))
	if err == nil {
		k.sandboxes[pod.Name] = string(field(response, 1))
	}
	return err
}

// address returns the address of a pod's sandbox, as reported by its runtime.
func (k *cri) address(pod string) string {
	k.Helper()
	response, err := k.call("PodSandboxStatus", texts(1, k.sandboxes[pod]))
	require.NoError(k, err)
	return string(field(field(field(response, 1), 5), 1))
}

func (k *cri) stopAll() {
	k.Helper()
	for pod, id := range k.sandboxes {
		_, stopped := k.call("StopPodSandbox", texts(1, id))
		_, removed := k.call("RemovePodSandbox", texts(1, id))
		require.NoError(k, errors.Join(stopped, removed), pod)
	}
	clear(k.sandboxes)
}

// texts encodes a message of fields, given as pairs of a number and a text.
func texts(pairs ...any) (message []byte) {
	for i := 0; i < len(pairs); i += 2 {
		message = protowire.AppendTag(message, protowire.Number(pairs[i].(int)), protowire.BytesType)
		message = protowire.AppendString(message, pairs[i+1].(string))
	}
	return message
}

// field returns a field of a message, which is a text or a message, or nil.
func field(message []byte, number protowire.Number) []byte {
	for len(message) > 0 {
		found, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		length := protowire.ConsumeFieldValue(found, kind, message[n:])
		if length < 0 {
			return nil
		}
		if found == number && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message[n:])
			return value
		}
		message = message[n+length:]
	}
	return nil
}
