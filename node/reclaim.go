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

// A volume that is a folder of a Node goes with its data, which the agent removes: an annotation of the Node with this
// prefix and the volume's name asks for it by the folder's path, and gets the answer in the path's place.
const (
	annotationFolder = "node-local.coxswain.dev/"
	folderRemoved    = "removed"
	folderFailed     = "failed: "
)

// reclaimFolders removes the folders that a Node's annotations ask for, and answers. Requests that were made while
// the agent was away, or half done when it ended, are completed when it is back.
func (a *agent) reclaimFolders(ctx context.Context, n *hostedNode, node *corev1.Node) error {
	for key, path := range node.Annotations {
		volume, ok := strings.CutPrefix(key, annotationFolder)
		if !ok || path == folderRemoved || strings.HasPrefix(path, folderFailed) {
			continue
		}
		answer := folderRemoved
		if err := a.removeFolder(volume, path); err != nil {
			a.Log.Warn("the folder of a volume is not removed", "node", n.name, "volume", volume, "err", err)
			answer = folderFailed + err.Error()
		}
		if err := n.answerFolder(ctx, node, key, path, answer); err != nil {
			return err
		}
	}
	return nil
}

// answerFolder puts the answer in the place of the request, where that still stands. The cache may show one that was
// answered before, to which a second answer would stay for ever: the client has read the first, and removed it.
func (n *hostedNode) answerFolder(ctx context.Context, node *corev1.Node, key, request, answer string) error {
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value"`
	}
	at := "/metadata/annotations/" + jsonPointer.Replace(key)
	patch, err := json.Marshal([]operation{
		{"test", "/metadata/uid", node.UID}, {"test", at, request}, {"replace", at, answer},
	})
	if err != nil {
		return err
	}
	_, err = n.client.CoreV1().Nodes().Patch(ctx, n.name, types.JSONPatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) { // Invalid is how a test fails
		return nil
	}
	return err
}

// jsonPointer escapes a key for a path of a JSON patch (RFC 6901).
var jsonPointer = strings.NewReplacer("~", "~0", "/", "~1")

// removeFolder removes the folder of a volume, if it is there. Whatever the request says, nothing is removed
// but one that bears the volume's name and is right below one of VolumeRoots; symbolic links are not
// followed, and where something is mounted in it, it stays.
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

// oneFileSystem refuses a folder in which something else is mounted.
func oneFileSystem(root *os.Root, name string) error {
	top, err := root.Lstat(".")
	if err != nil {
		return err
	}
	if info, err := root.Lstat(name); err == nil && !info.IsDir() {
		return nil // a link or a file in its place
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
