package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The agent deletes the data of a reclaimed volume that is a folder of its Node. A client requests that with an
// annotation of the Node: the key is this prefix and the volume's name, the value is the folder's path. The agent
// replaces the value by its answer.
const (
	annotationFolder = "node-local.coxswain.dev/"
	folderRemoved    = "removed"
	folderFailed     = "failed: "
)

// reclaimFolders removes the folders that a Node's annotations name, and answers. It also completes requests from the
// time when no agent was running, and requests that an earlier agent has left unfinished.
func (a *agent) reclaimFolders(ctx context.Context, n *hostedNode, node *corev1.Node) error {
	for key, path := range node.Annotations {
		volume, ok := strings.CutPrefix(key, annotationFolder)
		if !ok || path == folderRemoved || strings.HasPrefix(path, folderFailed) {
			continue
		}
		answer := folderRemoved
		if err := a.removeFolder(volume, path); err != nil {
			a.Log.Warn("cannot remove the folder of a volume", "node", n.name, "volume", volume, "err", err)
			answer = folderFailed + err.Error()
		}
		if err := n.answerFolder(ctx, node, key, path, answer); err != nil {
			return err
		}
	}
	return nil
}

// answerFolder replaces a request by its answer, if the request still exists. The cache may show a request that was
// answered before. A second answer would then stay forever, because the client has read and removed the first.
func (n *hostedNode) answerFolder(ctx context.Context, node *corev1.Node, key, request, answer string) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	pointer := "/metadata/annotations/" + jsonPointer.Replace(key)
	patch, err := json.Marshal([]operation{
		{"test", "/metadata/uid", node.UID}, {"test", pointer, request}, {"replace", pointer, answer},
	})
	if err != nil {
		return err
	}
	_, err = n.client.CoreV1().Nodes().Patch(ctx, n.name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) { // Invalid is a failed test
		return nil
	}
	return err
}

// jsonPointer escapes a key for a path of a JSON patch (RFC 6901).
var jsonPointer = strings.NewReplacer("~", "~0", "/", "~1")

// removeFolder removes the folder of a volume, if it exists. Regardless of the request, it removes only a direct
// subfolder of one of VolumeRoots that has the volume's name. It follows no symbolic links, and fails if anything is
// mounted within the folder.
func (a *agent) removeFolder(volume, path string) error {
	if len(a.VolumeRoots) == 0 && a.Runtime == Simulated {
		return nil // no folder was ever made
	}
	parent, name := filepath.Dir(path), filepath.Base(path)
	if path != filepath.Clean(path) || !slices.ContainsFunc(a.VolumeRoots, func(r string) bool {
		return filepath.Clean(r) == parent
	}) {
		return fmt.Errorf("%s is not right below --node-local-root (%s)", path, strings.Join(a.VolumeRoots, ", "))
	}
	if !strings.HasPrefix(volume, "pvc-") || !strings.HasPrefix(name, volume+"_") {
		return fmt.Errorf("%s does not bear the name of volume %q", path, volume)
	}
	root, err := os.OpenRoot(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := oneFileSystem(root, name); err != nil {
		return err
	}
	return root.RemoveAll(name)
}

// oneFileSystem returns an error if anything is mounted within a folder.
func oneFileSystem(root *os.Root, name string) error {
	top, err := root.Lstat(".")
	if err != nil {
		return err
	}
	if info, err := root.Lstat(name); err == nil && !info.IsDir() {
		return nil // it was replaced by a link or a file
	}
	err = fs.WalkDir(root.FS(), name, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil && device(info) != device(top) {
			err = fmt.Errorf("%s is mounted from elsewhere", filepath.Join(root.Name(), path))
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
