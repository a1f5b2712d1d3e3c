// Package snapshots saves all objects of a server under a name, and puts them back while the server runs.
//
// A Keeper writes each snapshot to a file of its own (file.go), or keeps it in memory if the objects are in memory. To
// load one, it makes the store's objects those of the snapshot in one transaction (storage.Store.Restore). Watches
// continue: they receive the differences as events, and resourceVersions grow as usual. A crash leaves the objects from
// before or from the snapshot. Documents are saved as they are stored: encrypted objects stay encrypted.
//
// Two kinds of documents are about the present, not about the state of the cluster, and are not put back: the records
// of running servers, and Leases that exist. The holder of a Lease would otherwise lose it.
package snapshots

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	"github.com/coxswain-dev/coxswain/apiserver/controlplane"
	"github.com/coxswain-dev/coxswain/storage"
)

// Options configure a Keeper.
type Options struct {
	// Dir is the folder of the files, which is created when it is needed. "" keeps snapshots in memory.
	Dir string
	// Open decrypts a document in place, or sets its error. nil is for a server without encryption.
	Open func(ctx context.Context, kv *storage.KV)
	// Version is the version of the server. Only a server of the same version loads a snapshot: another one may store
	// objects in another way.
	Version string
	// Cluster identifies the cluster's certificate authority. Only credentials from before a snapshot of the same
	// cluster stay valid.
	Cluster string
	// Refusal, if not "", is why there can be no snapshots.
	Refusal string
	// Hold, if not nil, stops controllers in this process while objects are put back.
	Hold Hold
	// Clock is the time of snapshots; nil is the real clock.
	Clock clock.PassiveClock
}

// Hold stops clients of the server from acting while they have seen only some of the objects that are put back.
type Hold interface {
	// Begin stops them, and waits until they have stopped or ctx ends.
	Begin(ctx context.Context)
	// Behind describes clients that have not seen a revision yet.
	Behind(revision int64) []string
	// End lets them go on.
	End()
}

// Keeper saves and loads the snapshots of one Store. Its methods are safe for concurrent use, and return errors for
// clients of the API.
type Keeper struct {
	Options
	// Store has the objects. It is set before the first call.
	Store *storage.Store

	mu     sync.Mutex // held by each operation
	memory map[string]*snapshot
}

// Info describes a snapshot.
type Info struct {
	Name    string    `json:"name"`
	Time    time.Time `json:"time"`
	Version string    `json:"version"`
	// Revision is the resourceVersion of the snapshot; after a load, that of the restored state.
	Revision int64 `json:"revision"`
	Objects  int   `json:"objects"`
	Bytes    int64 `json:"bytes"`
	// OtherCluster reports that the snapshot is of another cluster.
	OtherCluster bool `json:"otherCluster,omitempty"`
}

// snapshot is a snapshot in memory.
type snapshot struct {
	header
	documents []storage.KV
}

// New returns a Keeper without a Store.
func New(o Options) *Keeper {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Keeper{Options: o, memory: map[string]*snapshot{}}
}

// maxName keeps the name of a file, with its ending, within the limits of file systems.
const maxName = 100

// begin checks a name and waits for other operations. The caller calls the result when the operation has ended.
func (k *Keeper) begin(name string) (end func(), err error) {
	if k.Refusal != "" {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure,
			Code: http.StatusNotImplemented, Reason: metav1.StatusReasonMethodNotAllowed, Message: k.Refusal}}
	}
	problems := validation.IsDNS1123Subdomain(name)
	if len(name) > maxName {
		problems = append(problems, validation.MaxLenError(maxName))
	}
	if len(problems) > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%q is not a name of a snapshot: %s", name,
			strings.Join(problems, "; ")))
	}
	k.mu.Lock()
	return k.mu.Unlock, nil
}

// Save saves the present objects under a name, in place of an earlier snapshot of that name.
func (k *Keeper) Save(ctx context.Context, name string) (*Info, error) {
	end, err := k.begin(name)
	if err != nil {
		return nil, err
	}
	defer end()
	s := &snapshot{header: header{Format: format, Version: k.Version, Cluster: k.Cluster, Time: k.Clock.Now().UTC()}}
	s.Revision, err = k.Store.Save(ctx, func(kv storage.KV) error {
		s.documents = append(s.documents, kv)
		s.Bytes += int64(len(kv.Value))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("save the objects: %w", err)
	}
	s.Objects = len(s.documents)
	if k.Dir == "" {
		k.memory[name] = s
	} else if err := s.write(k.Dir, name); err != nil {
		return nil, fmt.Errorf("save snapshot %s: %w", name, err)
	}
	return k.info(name, &s.header), nil
}

func (k *Keeper) info(name string, h *header) *Info {
	return &Info{Name: name, Time: h.Time, Version: h.Version, Revision: h.Revision, Objects: h.Objects, Bytes: h.Bytes,
		OtherCluster: h.Cluster != k.Cluster}
}

// Load puts the objects of a snapshot in place of the present ones. The snapshot may be of another cluster.
func (k *Keeper) Load(ctx context.Context, name string) (*Info, error) {
	return k.restore(ctx, name, true)
}

// Reset does the same as Load with a snapshot of this cluster, and rejects others: every credential that was valid when
// the snapshot was saved is valid again.
func (k *Keeper) Reset(ctx context.Context, name string) (*Info, error) {
	return k.restore(ctx, name, false)
}

func (k *Keeper) restore(ctx context.Context, name string, otherCluster bool) (*Info, error) {
	end, err := k.begin(name)
	if err != nil {
		return nil, err
	}
	defer end()
	s, err := k.read(name)
	if err != nil {
		return nil, err
	}
	info := k.info(name, &s.header)
	switch {
	case s.Version != k.Version:
		return nil, conflict("snapshot %s is of version %s, and this server is %s: save it again with this version",
			name, s.Version, k.Version)
	case info.OtherCluster && !otherCluster:
		return nil, conflict("snapshot %s is of another cluster: its credentials are not valid here. To use its "+
			"objects, load it", name)
	}
	documents := slices.Clone(s.documents)
	if k.Open != nil {
		for i := range documents {
			k.Open(ctx, &documents[i])
		}
	}
	info.Revision, err = k.replace(ctx, storage.RestoreRequest{Documents: documents,
		Ignore:      func(path string) bool { return strings.HasPrefix(path, controlplane.Presences+"/") },
		KeepPresent: s.keepsLease})
	if err != nil {
		return nil, fmt.Errorf("load snapshot %s: %w", name, err)
	}
	return info, nil
}

const (
	// holdPatience limits how long controllers are waited for, before and after their objects are replaced.
	holdPatience = 5 * time.Second
	holdLook     = time.Millisecond
	// askEvery is after how many looks watches get another bookmark, since a watch may have opened meanwhile.
	askEvery = 50
)

// replace puts the objects in place while the controllers of this process stand still, and waits until these have seen
// them.
func (k *Keeper) replace(ctx context.Context, r storage.RestoreRequest) (int64, error) {
	if k.Hold == nil {
		return k.Store.Restore(ctx, r)
	}
	patience, cancel := context.WithTimeout(ctx, holdPatience)
	defer cancel()
	k.Hold.Begin(patience)
	defer k.Hold.End()
	revision, err := k.Store.Restore(ctx, r)
	if err != nil {
		return 0, err
	}
	patience, cancel = context.WithTimeout(ctx, holdPatience)
	defer cancel()
	// A cache is at a revision when it has seen one of its changes. At a later one, it has seen all of them.
	later, err := k.Store.Revision(patience)
	for look := 0; err == nil && len(k.Hold.Behind(later)) > 0; look++ {
		if look%askEvery == 0 {
			k.Store.AskBookmarks() // caches whose kinds have not changed would not learn of the revision otherwise
		}
		select {
		case <-time.After(holdLook):
		case <-patience.Done():
			return revision, nil
		}
	}
	return revision, nil
}

func conflict(format string, args ...any) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusConflict,
		Reason: metav1.StatusReasonConflict, Message: fmt.Sprintf(format, args...)}}
}

const (
	leases     = "coordination.k8s.io/leases/"
	namespaces = "core/namespaces/"
)

// keepsLease reports whether a present document is a Lease whose namespace the snapshot has.
func (s *snapshot) keepsLease(path string) bool {
	rest, ok := strings.CutPrefix(path, leases)
	if !ok {
		return false
	}
	namespace, _, _ := strings.Cut(rest, "/")
	_, found := slices.BinarySearchFunc(s.documents, namespaces+namespace, func(kv storage.KV, path string) int {
		return strings.Compare(kv.Path, path)
	})
	return found
}

func (k *Keeper) read(name string) (*snapshot, error) {
	s, err := k.memory[name], error(nil)
	if k.Dir != "" {
		s, err = readFile(k.path(name))
	}
	if err == nil && s == nil || errors.Is(err, os.ErrNotExist) {
		return nil, k.missing(name)
	}
	if err != nil {
		return nil, conflict("snapshot %s cannot be read: %v", name, err)
	}
	return s, nil
}

func (k *Keeper) path(name string) string { return filepath.Join(k.Dir, name+suffix) }

func (k *Keeper) missing(name string) error {
	text := fmt.Sprintf("there is no snapshot %s", name)
	if names, err := k.names(); err == nil && len(names) > 0 {
		text += ", but: " + strings.Join(names, ", ")
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound,
		Reason: metav1.StatusReasonNotFound, Message: text}}
}

// Delete removes a snapshot.
func (k *Keeper) Delete(name string) (*Info, error) {
	end, err := k.begin(name)
	if err != nil {
		return nil, err
	}
	defer end()
	info := &Info{Name: name}
	if k.Dir != "" {
		if h, err := readHeader(k.path(name)); err == nil {
			info = k.info(name, h)
		}
		if err = os.Remove(k.path(name)); errors.Is(err, os.ErrNotExist) {
			return nil, k.missing(name)
		}
		return info, err
	}
	s := k.memory[name]
	if s == nil {
		return nil, k.missing(name)
	}
	delete(k.memory, name)
	return k.info(name, &s.header), nil
}

// List returns the snapshots in the order of their names. Files that are not snapshots are left out.
func (k *Keeper) List() ([]Info, error) {
	end, err := k.begin("any")
	if err != nil {
		return nil, err
	}
	defer end()
	names, err := k.names()
	if err != nil {
		return nil, err
	}
	infos := []Info{}
	for _, name := range names {
		h := &header{}
		if s := k.memory[name]; s != nil {
			h = &s.header
		} else if h, err = readHeader(k.path(name)); err != nil {
			continue
		}
		infos = append(infos, *k.info(name, h))
	}
	return infos, nil
}

// names returns the names of all snapshots, sorted. The caller holds the lock.
func (k *Keeper) names() ([]string, error) {
	var names []string
	for name := range k.memory {
		names = append(names, name)
	}
	if k.Dir != "" {
		entries, err := os.ReadDir(k.Dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if name, ok := strings.CutSuffix(e.Name(), suffix); ok && len(validation.IsDNS1123Subdomain(name)) == 0 {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}
