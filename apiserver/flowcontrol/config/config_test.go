package config_test

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/flowcontrol/mandatory"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol"
	"github.com/coxswain-dev/coxswain/apiserver/flowcontrol/config"
	"github.com/coxswain-dev/coxswain/storage"
)

// memory is the stored objects of one kind.
type memory struct {
	mu       sync.Mutex
	items    []*storage.Object
	revision int64
	read     int
	fails    error
}

func (m *memory) Changed() (int64, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.revision, len(m.items) > 0
}

func (m *memory) List(context.Context, storage.ListRequest) (*storage.List, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read++
	return &storage.List{Items: m.items}, m.fails
}

func (m *memory) put(t *testing.T, res *api.Resource, objects ...api.Object) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.revision++
	m.items = nil
	for _, obj := range objects {
		doc, err := encoding.Encode(res, obj)
		require.NoError(t, err)
		m.items = append(m.items, &storage.Object{Key: storage.Key{Name: obj.GetName()}, JSON: doc})
	}
}

func TestRefresh_TakesOverWhatHasChanged(t *testing.T) {
	t.Parallel()
	levelKind := &api.Resource{
		Names:   api.Names{Group: flowv1.GroupName, Version: "v1", Kind: "PriorityLevelConfiguration"},
		Storage: api.Storage{New: func() api.Object { return &flowv1.PriorityLevelConfiguration{} }},
	}
	schemaKind := &api.Resource{
		Names:   api.Names{Group: flowv1.GroupName, Version: "v1", Kind: "FlowSchema"},
		Storage: api.Storage{New: func() api.Object { return &flowv1.FlowSchema{} }},
	}
	var levels, schemas memory
	var log bytes.Buffer
	d := flowcontrol.New(flowcontrol.Options{Seats: 10, QueueWait: time.Second, Levels: mandatory.PriorityLevels(),
		Schemas: mandatory.FlowSchemas()})
	kinds := []config.Kind{{Resource: levelKind, Objects: &levels}, {Resource: schemaKind, Objects: &schemas}}
	f := config.New(d, kinds, slog.New(slog.NewTextHandler(&log, nil)))
	classify := func() string {
		f.Refresh(t.Context())
		return f.Classify(&flowcontrol.Request{User: "jane", Verb: "get", Path: "/version"}).Schema
	}
	require.Equal(t, "catch-all", classify())
	require.Zero(t, levels.read, "nothing has changed")

	levels.put(t, levelKind, &flowv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "own", UID: "u1"},
		Spec: flowv1.PriorityLevelConfigurationSpec{Type: flowv1.PriorityLevelEnablementLimited,
			Limited: &flowv1.LimitedPriorityLevelConfiguration{NominalConcurrencyShares: ptr.To[int32](1),
				LimitResponse: flowv1.LimitResponse{Type: flowv1.LimitResponseTypeReject}}}})
	schemas.put(t, schemaKind, &flowv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "jane", UID: "u2"},
		Spec: flowv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowv1.PriorityLevelConfigurationReference{Name: "own"}, MatchingPrecedence: 1,
			Rules: []flowv1.PolicyRulesWithSubjects{{
				Subjects: []flowv1.Subject{{Kind: flowv1.SubjectKindUser, User: &flowv1.UserSubject{Name: "jane"}}},
				NonResourceRules: []flowv1.NonResourcePolicyRule{{Verbs: []string{"*"},
					NonResourceURLs: []string{"*"}}},
			}}}})
	require.Equal(t, "jane", classify())
	require.Equal(t, "jane", classify())
	require.Equal(t, 1, levels.read, "once is enough")

	schemas.put(t, schemaKind)
	require.Equal(t, "catch-all", classify())

	schemas.items = []*storage.Object{{Key: storage.Key{Name: "odd"}, JSON: []byte("{")}}
	schemas.revision++
	require.Equal(t, "catch-all", classify())
	require.Contains(t, log.String(), "an object of flow control is not used")

	schemas.fails = storage.ErrUnavailable
	schemas.revision++
	reads := levels.read
	classify()
	classify()
	require.Equal(t, reads+2, levels.read, "a failure is tried again")
}
