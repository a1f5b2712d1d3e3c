package apiserver_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	flowv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
)

const (
	flowSchemas = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"
	flowLevels  = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations"
	flowDumps   = "/debug/api_priority_and_fairness/"

	schemaUID = "X-Kubernetes-PF-FlowSchema-UID"
	levelUID  = "X-Kubernetes-PF-PriorityLevel-UID"
)

// gate holds each creation of a ConfigMap in etcd until the test lets it pass.
type gate struct {
	entered atomic.Int64
	pass    chan struct{}
	opening sync.Once
}

// open lets all creations pass, present and future ones.
func (g *gate) open() { g.opening.Do(func() { close(g.pass) }) }

func (a *assembly) hold() *gate {
	g := &gate{pass: make(chan struct{})}
	a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
		if strings.HasSuffix(writes[0].Key.Collection, "/configmaps") { // the server itself writes as well
			g.entered.Add(1)
			<-g.pass
		}
		return a.backend.Backend.Commit(ctx, writes)
	}, nil)
	return g
}

// level reads a priority level's line in the dump: waiting and executing requests.
func (s *server) level(name string) (waiting, executing int) {
	s.t.Helper()
	for line := range strings.Lines(string(s.get(flowDumps + "dump_priority_levels").ok(http.StatusOK).body)) {
		cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), " ", ""), ",")
		if cells[0] != name {
			continue
		}
		var err error
		waiting, err = strconv.Atoi(cells[4])
		require.NoError(s.t, err)
		executing, err = strconv.Atoi(cells[5])
		require.NoError(s.t, err)
	}
	return waiting, executing
}

// metric returns the value of a series, 0 if there is none.
func (s *server) metric(series string) float64 {
	s.t.Helper()
	found := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(series) + ` (\S+)$`).FindSubmatch(
		s.get("/metrics").ok(http.StatusOK).body)
	if found == nil {
		return 0
	}
	value, err := strconv.ParseFloat(string(found[1]), 64)
	require.NoError(s.t, err)
	return value
}

// account returns a service account's client. Its requests are of the level workload-low.
func (a *assembly) account(name string) *server {
	user := "system:serviceaccount:default:" + name
	a.mayAll(user)
	return a.as(user, "system:serviceaccounts", "system:serviceaccounts:default")
}

// While the level of the workloads and its queues are full, requests of nodes, leader election, administrators and
// probes are served.
func TestFlow_HeartbeatsGetThroughAnOverload(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{
		RequestTimeout: 20 * time.Minute, // a quarter of it is for waiting
		Limits:         apiserver.Limits{RequestsInFlight: 5, MutatingRequestsInFlight: 5},
	})
	a.mayAll("system:kube-scheduler")
	elephant, node, scheduler := a.account("elephant"), a.as("system:node:n", "system:nodes"),
		a.as("system:kube-scheduler")
	a.create("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", m{"metadata": m{"name": "n"}})
	a.patch(flowLevels+"/workload-low", mergePatch, m{
		"metadata": m{"annotations": m{flowv1.AutoUpdateAnnotationKey: "false"}},
		"spec": m{"limited": m{"limitResponse": m{"queuing": m{"queues": 1, "handSize": 1,
			"queueLengthLimit": 3}}}},
	}).ok(http.StatusOK)

	g := a.hold()
	var flood sync.WaitGroup
	defer flood.Wait()
	defer g.open()
	answers := make(chan *answer, 100)
	// Add requests one by one, until one is rejected: then the level's seats and its queue are taken.
	for n := 0; ; n++ {
		require.Less(t, n, 50)
		flood.Go(func() { answers <- elephant.do(http.MethodPost, configMaps, configMap(fmt.Sprint("c", n))) })
		require.Eventually(t, func() bool {
			waiting, executing := a.level("workload-low")
			return waiting+executing > n || len(answers) > 0
		}, patience, tick)
		if len(answers) > 0 {
			break
		}
	}
	refused := <-answers
	refused.refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests,
		"Too many requests, please try again later.")
	require.Equal(t, "1", refused.header.Get("Retry-After"))
	require.NotEmpty(t, refused.header.Get(levelUID))
	waiting, _ := a.level("workload-low")
	require.Equal(t, 3, waiting)
	require.Equal(t, 1.0, a.metric(`apiserver_request_terminations_total{code="429",component="apiserver",group="",`+
		`resource="configmaps",scope="resource",subresource="",verb="POST",version="v1"}`))
	require.Equal(t, 1.0,
		a.metric(`apiserver_flowcontrol_rejected_requests_total{flow_schema="service-accounts",priority_level="workload-low",reason="queue-full"}`))
	require.Equal(t, 3.0,
		a.metric(`apiserver_flowcontrol_current_inqueue_requests{flow_schema="service-accounts",priority_level="workload-low"}`))
	elephant.get(configMaps).refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "")
	require.Contains(t, string(a.get(flowDumps+"dump_requests?includeRequestDetails=1").ok(http.StatusOK).body),
		"system:serviceaccount:default:elephant")

	renewal := m{"spec": m{"holderIdentity": "n", "renewTime": "2030-01-01T00:00:00.000000Z"}}
	node.patch("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n", mergePatch,
		renewal).ok(http.StatusOK)
	scheduler.create("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
		m{"metadata": m{"name": "scheduler"}})
	a.get(configMaps).ok(http.StatusOK)
	elephant.get("/readyz").ok(http.StatusOK)

	g.open()
	flood.Wait()
	for range len(answers) {
		(<-answers).ok(http.StatusCreated)
	}
	elephant.get(configMaps).ok(http.StatusOK)
	require.Eventually(t, func() bool {
		waiting, executing := a.level("workload-low")
		return waiting == 0 && executing == 0
	}, patience, tick)
}

// The requests of a user that floods its level wait in its own queues. Another user's request does not wait behind all
// of them.
func TestFlow_ABusyUserDoesNotStarveOthersOfItsLevel(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{
		RequestTimeout: 20 * time.Minute, // a quarter of it is for waiting
		Limits:         apiserver.Limits{RequestsInFlight: 5, MutatingRequestsInFlight: 5},
	})
	elephant, mouse := a.account("elephant"), a.account("mouse")
	g := a.hold()
	const many = 60
	var flood sync.WaitGroup
	defer flood.Wait()
	defer g.open()
	var done atomic.Int64
	for n := range many {
		flood.Go(func() {
			elephant.do(http.MethodPost, configMaps, configMap(fmt.Sprint("e", n))).ok(http.StatusCreated)
			done.Add(1)
		})
	}
	full := func(n int) {
		require.Eventually(t, func() bool {
			waiting, executing := a.level("workload-low")
			return waiting+executing == n
		}, patience, tick)
	}
	full(many)
	var before int64
	flood.Go(func() {
		mouse.do(http.MethodPost, configMaps, configMap("m")).ok(http.StatusCreated)
		before = done.Load()
	})
	full(many + 1)
	for range many + 1 {
		g.pass <- struct{}{}
	}
	flood.Wait()
	require.Less(t, before, int64(many*2/3))
}

// A request that has waited for a quarter of the request timeout gets 429. A request whose client disconnects leaves
// its queue.
func TestFlow_WaitingEnds(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{RequestTimeout: 4 * time.Second,
		Limits: apiserver.Limits{RequestsInFlight: 2, MutatingRequestsInFlight: 2}})
	elephant := a.account("elephant")
	g := a.hold()
	var flood sync.WaitGroup
	defer flood.Wait()
	defer g.open()
	codes := make(chan *answer, 20)
	for n := range 20 {
		flood.Go(func() {
			// The connection of a request that is held may be closed when the request has taken too long.
			res, err := elephant.http.Post(elephant.config.Host+configMaps, "application/json",
				reader(t, configMap(fmt.Sprint("e", n))))
			if err != nil {
				return
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			codes <- &answer{t: t, code: res.StatusCode, header: res.Header, body: body}
		})
	}
	(<-codes).refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "Too many requests")
	require.Eventually(t, func() bool {
		return a.metric(
			`apiserver_flowcontrol_rejected_requests_total{flow_schema="service-accounts",priority_level="workload-low",reason="time-out"}`) > 0
	}, patience, tick)

	cancelled := func() float64 {
		return a.metric(
			`apiserver_flowcontrol_rejected_requests_total{flow_schema="service-accounts",priority_level="workload-low",reason="cancelled"}`)
	}
	for n := 0; cancelled() == 0; n++ {
		require.Less(t, n, 60)
		ctx, leave := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, elephant.config.Host+configMaps, nil)
		require.NoError(t, err)
		left := make(chan struct{})
		go func() {
			defer close(left)
			if res, err := elephant.http.Do(req); err == nil {
				_ = res.Body.Close()
			}
		}()
		requests := func() bool {
			return strings.Contains(string(a.get(flowDumps+"dump_requests?includeRequestDetails=1").body), ", list,")
		}
		require.Eventually(t, func() bool {
			select {
			case <-left: // it had waited too long before the check
				return true
			default:
				return requests()
			}
		}, patience, tick)
		leave()
		<-left
		require.Eventually(t, func() bool { return !requests() }, patience, tick)
	}
	g.open()
}

// A client that does not send its body releases its seat to others, and takes a seat again when the body has arrived.
func TestFlow_ASlowBodyHoldsNoSeat(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{
		Limits: apiserver.Limits{RequestsInFlight: 1, MutatingRequestsInFlight: 0}})
	slow := a.account("slow")
	const labels = `{flow_schema="service-accounts",priority_level="workload-low"}`
	const executing, dispatched = "apiserver_flowcontrol_current_executing_requests" + labels,
		"apiserver_flowcontrol_dispatched_requests_total" + labels
	before := a.metric(dispatched)
	body, rest := io.Pipe()
	finished := make(chan int, 1)
	go func() {
		res, err := slow.http.Post(slow.config.Host+configMaps, "application/json", body)
		if err != nil {
			t.Error(err)
			close(finished)
			return
		}
		_ = res.Body.Close()
		finished <- res.StatusCode
	}()
	require.Eventually(t, func() bool { return a.metric(dispatched) > before }, patience, tick)
	require.Eventually(t, func() bool { return a.metric(executing) == 0 }, patience, tick,
		"the request releases its seat")
	slow.get(configMaps).ok(http.StatusOK)
	_, err := io.WriteString(rest, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"late"}}`)
	require.NoError(t, err)
	require.NoError(t, rest.Close())
	require.Equal(t, http.StatusCreated, <-finished)
	require.Equal(t, before+3, a.metric(dispatched), "the list, and the body's request before and after it")
}

// Each answer has the UIDs of the schema and the level of its request. The dumps and the metrics have their names.
func TestFlow_AnswersNameSchemaAndLevel(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	a.mayAll("jane", "system:kube-controller-manager", "system:serviceaccount:kube-system:job-controller",
		"coxswain:simulated-nodes")
	schemaOf, levelOf := map[string]string{}, map[string]string{}
	for path, names := range map[string]map[string]string{flowSchemas: schemaOf, flowLevels: levelOf} {
		items, _ := a.get(path).ok(http.StatusOK).at("items").([]any)
		for _, item := range items {
			meta := item.(map[string]any)["metadata"].(map[string]any)
			names[meta["uid"].(string)] = meta["name"].(string)
		}
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x"
	accounts := []string{"system:serviceaccounts", "system:serviceaccounts:kube-system"}
	for _, c := range []struct {
		user          string
		groups        []string
		path          string
		schema, level string
	}{
		{"admin", []string{"system:masters"}, configMaps, "exempt", "exempt"},
		{"jane", nil, configMaps, "global-default", "global-default"},
		{"jane", nil, "/livez", "probes", "exempt"},
		{"jane", nil, "/version", "global-default", "global-default"},
		{"jane", nil, "/apis/none/v1/things", "global-default", "global-default"},
		{"jane", nil, configMaps + "?watch=1&timeoutSeconds=1", "global-default", "global-default"},
		{"nobody", nil, configMaps, "global-default", "global-default"}, // rejected by authorization afterwards
		{"system:kube-controller-manager", nil, leases, "system-leader-election", "leader-election"},
		{"system:kube-controller-manager", nil, configMaps, "kube-controller-manager", "workload-high"},
		{"system:serviceaccount:kube-system:job-controller", accounts, configMaps, "kube-system-service-accounts",
			"workload-high"},
		{"system:serviceaccount:kube-system:job-controller", accounts, leases, "workload-leader-election",
			"leader-election"},
		{"system:node:n", []string{"system:nodes"}, nodes + "/n", "system-node-high", "node-high"},
		{"system:node:n", []string{"system:nodes"}, pods + "?fieldSelector=spec.nodeName%3Dn",
			"system-nodes", "system"},
		{"coxswain:simulated-nodes", nil, leases, "coxswain-simulated-node-high", "node-high"},
		{"coxswain:simulated-nodes", nil, pods, "coxswain-simulated-nodes", "system"},
	} {
		got := a.as(c.user, c.groups...).get(c.path)
		require.Equal(t, c.schema, schemaOf[got.header.Get(schemaUID)], "%+v", c)
		require.Equal(t, c.level, levelOf[got.header.Get(levelUID)], "%+v", c)
	}
	require.Positive(t,
		a.metric(`apiserver_flowcontrol_dispatched_requests_total{flow_schema="system-node-high",priority_level="node-high"}`))
	require.Positive(t,
		a.metric(`apiserver_flowcontrol_request_execution_seconds_count{flow_schema="global-default",priority_level="global-default",type="watch"}`))
	require.Equal(t, 245.0, a.metric(`apiserver_flowcontrol_nominal_limit_seats{priority_level="workload-low"}`))
	require.Equal(t, 98.0, a.metric(`apiserver_flowcontrol_nominal_limit_seats{priority_level="node-high"}`))
	require.Contains(t, string(a.get(flowDumps+"dump_queues").ok(http.StatusOK).body), "\nworkload-high,")
	a.get(flowDumps+"dump_nothing").refused(http.StatusNotFound, metav1.StatusReasonNotFound, "could not find")
	a.as("nobody").get(flowDumps+"dump_requests").refused(http.StatusForbidden, metav1.StatusReasonForbidden,
		"dump_requests")
}

// A watch holds its seat only while it begins.
func TestFlow_WatchesHoldNoSeats(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(),
		apiserver.Options{Limits: apiserver.Limits{RequestsInFlight: 1, MutatingRequestsInFlight: 1}})
	user := a.account("watcher")
	a.create(configMaps, configMap("a"))
	for range 20 {
		user.watch(configMaps+"?watch=1").expect("ADDED", "a")
	}
	require.Eventually(t, func() bool {
		_, executing := a.level("workload-low")
		return executing == 0
	}, patience, tick)
}

// The width of a list grows with its length, up to its limit and to the maximum of its level.
func TestFlow_ListsAreWide(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	for i := range 250 {
		a.create(configMaps, configMap(fmt.Sprint("c", i)))
	}
	a.mayAll("jane")
	jane := a.as("jane")
	const seats = `apiserver_flowcontrol_work_estimated_seats_sum{flow_schema="global-default",priority_level="global-default"}`
	last := a.metric(seats)
	for _, c := range []struct {
		path string
		want float64
	}{
		{configMaps, 3}, {configMaps + "?limit=100", 1}, {configMaps + "?limit=101", 2},
		{configMaps + "?limit=1&labelSelector=a", 3},
		{configMaps + "?fieldSelector=metadata.name%3Dc1", 1}, {configMaps + "/c1", 1}, {"/version", 1},
	} {
		jane.get(c.path).ok(http.StatusOK)
		now := a.metric(seats)
		require.Equal(t, c.want, now-last, c.path)
		last = now
	}
}

// A write to levels and schemas is in force for the next request.
func TestFlow_ConfigurationIsLive(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	a.mayAll("jane")
	jane := a.as("jane")
	judge := func() string { return jane.get(configMaps).header.Get(schemaUID) }
	usual := judge()
	level := a.create(flowLevels, m{"metadata": m{"name": "janes"}, "spec": m{"type": "Limited", "limited": m{
		"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
		"limitResponse": m{"type": "Reject"},
	}}}).object()
	schema := a.create(flowSchemas, m{"metadata": m{"name": "janes"}, "spec": m{
		"matchingPrecedence": 50, "priorityLevelConfiguration": m{"name": "janes"},
		"rules": []any{m{"subjects": []any{m{"kind": "User", "user": m{"name": "jane"}}}, "resourceRules": []any{m{
			"verbs": []string{"*"}, "apiGroups": []string{""}, "resources": []string{"configmaps"},
			"namespaces": []string{"*"}}}}},
	}}).object()
	require.Equal(t, string(schema.GetUID()), judge())
	require.Equal(t, usual, jane.get(pods).header.Get(schemaUID))

	// Without shares the level has no seats, so that it serves one request at a time.
	g := a.hold()
	var held sync.WaitGroup
	defer held.Wait()
	defer g.open()
	held.Go(func() { jane.create(configMaps, configMap("a")) })
	require.Eventually(t, func() bool { return g.entered.Load() == 1 }, patience, tick)
	jane.get(configMaps).refused(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "")
	a.patch(flowLevels+"/janes", mergePatch, m{"spec": m{"limited": m{"nominalConcurrencyShares": 30}}}).ok(
		http.StatusOK)
	jane.get(configMaps).ok(http.StatusOK)
	g.open()
	held.Wait()
	a.backend.set(nil, nil)

	dangling := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			conditions, _ := a.get(flowSchemas+"/janes").at("status", "conditions").([]any)
			return len(conditions) == 1 && conditions[0].(map[string]any)["status"] == want
		}, patience, tick)
	}
	dangling("False")
	a.delete(flowLevels+"/janes", nil).ok(http.StatusOK)
	require.Equal(t, usual, judge(), "a schema without its level is not used")
	dangling("True")
	again := a.create(flowLevels, m{"metadata": m{"name": "janes"}, "spec": level.Object["spec"]}).object()
	require.Equal(t, string(again.GetUID()), jane.get(configMaps).header.Get(levelUID))
	dangling("False")
	a.delete(flowSchemas+"/janes", nil).ok(http.StatusOK)
	require.Equal(t, usual, judge())
}

// Changes of the mandatory objects are reverted, and the objects are created again.
func TestFlow_MandatoryObjectsStay(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	for path, change := range map[string]m{
		flowSchemas + "/catch-all": {"spec": m{"matchingPrecedence": 9999}},
		flowSchemas + "/exempt":    {"spec": m{"priorityLevelConfiguration": m{"name": "catch-all"}}},
		flowLevels + "/catch-all":  {"spec": m{"limited": m{"nominalConcurrencyShares": 6}}},
		flowLevels + "/exempt":     {"spec": m{"type": "Limited"}},
	} {
		a.patch(path, mergePatch, change).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"must equal the fixed value")
		old := a.get(path).ok(http.StatusOK).object()
		a.delete(path, nil).ok(http.StatusOK)
		require.Eventually(t, func() bool { return a.get(path).code == http.StatusOK }, patience, tick)
		now := a.get(path).ok(http.StatusOK).object()
		require.NotEqual(t, old.GetUID(), now.GetUID())
		require.Equal(t, old.Object["spec"], now.Object["spec"])
	}
	// Administrators decide how many shares the exempt level has.
	a.patch(flowLevels+"/exempt", mergePatch,
		m{"spec": m{"exempt": m{"nominalConcurrencyShares": 245, "lendablePercent": 50}}}).ok(http.StatusOK)
	require.Equal(t, 300.0, a.metric(`apiserver_flowcontrol_nominal_limit_seats{priority_level="exempt"}`))
	require.Equal(t, 150.0, a.metric(`apiserver_flowcontrol_lower_limit_seats{priority_level="exempt"}`))
}

// The server maintains the suggested objects unless the administrator has taken them over.
func TestFlow_SuggestedObjectsAreKeptWhileTheyAreOurs(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	precedence := func(name string) int64 {
		return a.get(flowSchemas+"/"+name).ok(http.StatusOK).at("spec", "matchingPrecedence").(int64)
	}
	const key = flowv1.AutoUpdateAnnotationKey
	theirs := m{"metadata": m{"annotations": m{key: "false"}}, "spec": m{"matchingPrecedence": 901}}
	a.patch(flowSchemas+"/service-accounts", mergePatch, theirs).ok(http.StatusOK)
	// Taken over by an edit: without the annotation, the generation decides which value it gets.
	a.patch(flowSchemas+"/kube-scheduler", mergePatch, m{"metadata": m{"annotations": m{key: nil}},
		"spec": m{"matchingPrecedence": 801}}).ok(http.StatusOK)
	a.patch(flowSchemas+"/global-default", mergePatch, m{"spec": m{"matchingPrecedence": 9000}}).ok(http.StatusOK)
	a.patch(flowLevels+"/system", mergePatch, m{"spec": m{"limited": m{"nominalConcurrencyShares": 1}}}).ok(
		http.StatusOK)
	a.create(flowSchemas, m{"metadata": m{"name": "of-old", "annotations": m{key: "true"}},
		"spec": m{"priorityLevelConfiguration": m{"name": "system"}}})
	a.delete(flowLevels+"/workload-high", nil).ok(http.StatusOK)
	require.Eventually(t, func() bool {
		scheduler := a.get(flowSchemas + "/kube-scheduler").object()
		return precedence("global-default") == 9900 &&
			a.get(flowLevels+"/system").at("spec", "limited", "nominalConcurrencyShares") == int64(30) &&
			a.get(flowSchemas+"/of-old").code == http.StatusNotFound &&
			a.get(flowLevels+"/workload-high").code == http.StatusOK &&
			scheduler.GetAnnotations()[key] == "false"
	}, patience, tick)
	require.EqualValues(t, 901, precedence("service-accounts"))
	require.EqualValues(t, 801, precedence("kube-scheduler"))
}

// Several servers write no more than one, and objects that are up to date are not written.
func TestFlow_ServersDoNotFight(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	versions := func() map[types.UID]string {
		all := map[types.UID]string{}
		for _, path := range []string{flowSchemas, flowLevels} {
			items, _ := a.get(path).ok(http.StatusOK).at("items").([]any)
			for _, item := range items {
				meta := item.(map[string]any)["metadata"].(map[string]any)
				all[types.UID(meta["uid"].(string))] = meta["resourceVersion"].(string)
			}
		}
		return all
	}
	before := versions()
	second := a.another(t, apiserver.Options{})
	events := a.watch(flowSchemas + "?watch=1&resourceVersion=" +
		a.get(flowSchemas).at("metadata", "resourceVersion").(string))
	a.create(flowSchemas, m{"metadata": m{"name": "new"}, "spec": m{"priorityLevelConfiguration": m{"name": "system"}}})
	events.expect("ADDED", "new")
	events.expect("MODIFIED", "new") // one of the two has written that its level exists
	second.delete(flowSchemas+"/probes", nil).ok(http.StatusOK)
	events.expect("DELETED", "probes")
	events.expect("ADDED", "probes") // with its status
	second.delete(flowSchemas+"/new", nil).ok(http.StatusOK)
	events.expect("DELETED", "new")
	after := versions()
	unchanged := 0
	for uid, version := range before {
		if after[uid] == version {
			unchanged++
		}
	}
	require.Equal(t, len(before)-1, unchanged, "all but the one that was deleted")
	require.Len(t, slices.Collect(maps.Keys(after)), len(before))
}

func TestFlow_NeedsSeats(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	_, err := apiserver.New(t.Context(),
		apiserver.Options{Store: a.store, Registry: api.NewRegistry(builtin.Kinds()...),
			Limits: apiserver.Limits{RequestsInFlight: -1, MutatingRequestsInFlight: -1}})
	require.ErrorContains(t, err, "must add up to something positive")
}
