package apiserver_test

import (
	"bufio"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// auditEvent is audit.k8s.io/v1 Event, as clients decode it.
type auditEvent struct {
	Kind, APIVersion         string
	Level, AuditID, Stage    string
	RequestURI, Verb         string
	User                     authenticationv1.UserInfo
	ImpersonatedUser         *authenticationv1.UserInfo
	SourceIPs                []string
	UserAgent                string
	ObjectRef                map[string]string
	ResponseStatus           *metav1.Status
	RequestObject            m
	ResponseObject           m
	RequestReceivedTimestamp metav1.MicroTime
	StageTimestamp           metav1.MicroTime
	Annotations              map[string]string
}

// auditedServer is a server with an audit log.
type auditedServer struct {
	*server
	log string
}

// startAudited starts a server with the rules of an audit policy. Events are written at once.
func startAudited(t testing.TB, rules string, change ...func(*audit.Options)) *auditedServer {
	t.Helper()
	auditor, log := openAudit(t, rules, change...)
	return &auditedServer{connect(t, servertest.Start(t, apiserver.Options{Audit: auditor}).Config), log}
}

// openAudit opens an audit log.
func openAudit(t testing.TB, rules string, change ...func(*audit.Options)) (auditor *audit.Auditor, log string) {
	t.Helper()
	dir := t.TempDir()
	o := audit.Defaults()
	o.PolicyFile, o.Log.Path = filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	writePolicy(t, o.PolicyFile, rules)
	for _, f := range change {
		f(&o)
	}
	auditor, err := audit.Open(o, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, auditor.Close()) })
	return auditor, o.Log.Path
}

func writePolicy(t testing.TB, path, rules string) {
	t.Helper()
	text := "apiVersion: audit.k8s.io/v1\nkind: Policy\n" + rules
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

// events waits for a number of events with an audit ID, and returns them.
func (s *auditedServer) events(id string, want int) (found []auditEvent) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		found = nil
		for _, e := range s.all() {
			if e.AuditID == id {
				found = append(found, e)
			}
		}
		return len(found) >= want
	}, patience, tick, "%d events of %s", want, id)
	require.Len(s.t, found, want)
	return found
}

// all returns the events in the log. Each must be one line of valid JSON without unknown fields.
func (s *auditedServer) all() (all []auditEvent) {
	s.t.Helper()
	file, err := os.Open(s.log)
	require.NoError(s.t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var e auditEvent
		d := json.NewDecoder(strings.NewReader(lines.Text()))
		d.DisallowUnknownFields()
		require.NoError(s.t, d.Decode(&e), lines.Text())
		all = append(all, e)
	}
	require.NoError(s.t, lines.Err())
	return all
}

// complete returns the last event of a request that was answered.
func (s *auditedServer) complete(a *answer) auditEvent {
	s.t.Helper()
	id := a.header.Get("Audit-Id")
	require.NotEmpty(s.t, id)
	for _, e := range s.events(id, 2) {
		if e.Stage == "ResponseComplete" {
			return e
		}
	}
	require.Fail(s.t, "the request is not complete", id)
	return auditEvent{}
}

const auditAll = "rules: [{level: RequestResponse}]\n"

func TestAudit_EveryVerbIsRecordedAsItIs(t *testing.T) {
	t.Parallel()
	s := startAudited(t, auditAll)
	created := configMap("a")
	for _, c := range []struct {
		method, path, contentType string
		body                      any
		verb                      string
		code                      int32
		ref                       map[string]string
	}{
		{http.MethodPost, configMaps, "", created, "create", 201, ref("name", "a")},
		{http.MethodPost, configMaps, "", created, "create", 409, ref("name", "a")},
		{http.MethodGet, configMaps + "/a", "", nil, "get", 200, ref("name", "a")},
		{http.MethodGet, configMaps + "/none", "", nil, "get", 404, ref("name", "none")},
		{http.MethodGet, configMaps, "", nil, "list", 200, ref()},
		{http.MethodGet, configMaps + "?fieldSelector=metadata.name%3Da", "", nil, "list", 200, ref("name", "a")},
		{http.MethodGet, configMaps + "?field%53elector=metadata.name%3Da", "", nil, "list", 200, ref("name", "a")},
		{http.MethodPut, configMaps + "/a", "", created, "update", 200, ref("name", "a")},
		{http.MethodPatch, configMaps + "/a", mergePatch, m{"data": m{"k": "w"}}, "patch", 200, ref("name", "a")},
		{http.MethodPatch, configMaps + "/a?fieldManager=x&force=1", "application/apply-patch+yaml", created, "patch", 200,
			ref("name", "a")},
		{http.MethodGet, configMaps + "?watch=1&timeoutSeconds=1&resourceVersion=0", "", nil, "watch", 200, ref()},
		{http.MethodDelete, configMaps + "/a", "", nil, "delete", 200, ref("name", "a")},
		{http.MethodDelete, configMaps, "", nil, "deletecollection", 200, ref()},
		{http.MethodGet, "/version", "", nil, "get", 200, nil},
		{http.MethodHead, "/livez", "", nil, "head", 200, nil},
		{http.MethodGet, "/apis/nowhere/v1/things/x", "", nil, "get", 404,
			map[string]string{"resource": "things", "apiGroup": "nowhere", "apiVersion": "v1", "name": "x"}},
	} {
		a := s.do(c.method, c.path, c.body, "Content-Type", c.contentType)
		stages := []string{"RequestReceived", "ResponseComplete"}
		if c.verb == "watch" {
			stages = []string{"RequestReceived", "ResponseStarted", "ResponseComplete"}
		}
		events := s.events(a.header.Get("Audit-Id"), len(stages))
		for i, e := range events {
			require.Equal(t, stages[i], e.Stage, c.path)
			require.Equal(t, []string{"Event", "audit.k8s.io/v1", "RequestResponse", c.path, c.verb, "admin"},
				[]string{e.Kind, e.APIVersion, e.Level, e.RequestURI, e.Verb, e.User.Username})
			require.Equal(t, []string{"127.0.0.1"}, e.SourceIPs)
			require.Equal(t, "Go-http-client/2.0", e.UserAgent)
			require.Equal(t, i == 0, e.ResponseStatus == nil)
			require.False(t, e.StageTimestamp.Before(&e.RequestReceivedTimestamp))
		}
		last := events[len(events)-1]
		require.Equal(t, c.code, last.ResponseStatus.Code, c.path)
		require.Equal(t, c.ref, last.ObjectRef, c.path)
		require.Equal(t, "allow", last.Annotations["authorization.k8s.io/decision"])
		if c.body != nil {
			require.NotEmpty(t, last.RequestObject["data"], c.path)
		}
		require.Equal(t, c.verb != "watch" && c.ref != nil, last.ResponseObject != nil, c.path)
		if c.code >= 400 {
			require.Equal(t, metav1.StatusFailure, last.ResponseStatus.Status)
			require.NotEmpty(t, last.ResponseStatus.Message)
		}
	}
}

// ref returns the objectRef of a ConfigMap.
func ref(more ...string) map[string]string {
	r := map[string]string{"resource": "configmaps", "namespace": "default", "apiVersion": "v1"}
	for i := 0; i < len(more); i += 2 {
		r[more[i]] = more[i+1]
	}
	return r
}

func TestAudit_BodiesAreJSONInEveryFormat(t *testing.T) {
	t.Parallel()
	s := startAudited(t, "omitManagedFields: true\n"+auditAll)
	yaml := "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: g-}\ndata: {k: v}\n"
	e := s.complete(s.do(http.MethodPost, configMaps, yaml, "Content-Type", asYAML, "Accept", asYAML))
	require.Equal(t, m{"k": "v"}, e.RequestObject["data"])
	require.Equal(t, m{"k": "v"}, e.ResponseObject["data"])
	require.NotContains(t, e.ResponseObject["metadata"], "managedFields")
	require.Regexp(t, `^g-.....$`, e.ObjectRef["name"], "the name that the server has chosen")

	_, err := s.typed().CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{}) // by protobuf
	require.NoError(t, err)
	all := s.all()
	items := all[len(all)-1].ResponseObject["items"].([]any)
	require.Len(t, items, 1)
	require.NotContains(t, items[0].(m)["metadata"], "managedFields")

	e = s.complete(s.get(configMaps, "Accept", asTable))
	require.Equal(t, "Table", e.ResponseObject["kind"])
	require.NotContains(t, e.ResponseObject["rows"].([]any)[0].(m)["object"].(m)["metadata"], "managedFields")
}

func TestAudit_CredentialsNeedRulesThatNameThem(t *testing.T) {
	t.Parallel()
	const secrets, value = "/api/v1/namespaces/default/secrets", "aHVzaA=="
	secret := m{"apiVersion": "v1", "kind": "Secret", "metadata": m{"name": "s"}, "data": m{"password": value}}
	review := m{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": m{"token": value}}
	s := startAudited(t, auditAll)
	for _, a := range []*answer{
		s.create(secrets, secret), s.get(secrets + "/s"), s.get(secrets), s.put(secrets+"/s", secret),
		s.patch(secrets+"/s", mergePatch, m{"data": m{"password": value}}), s.get(secrets, "Accept", asTable),
		s.create("/apis/authentication.k8s.io/v1/tokenreviews", review),
		s.do(http.MethodPost, secrets+"?dryRun=All", secret), s.delete(secrets, nil),
	} {
		e := s.complete(a)
		require.Equal(t, "Metadata", e.Level)
	}
	log, err := os.ReadFile(s.log)
	require.NoError(t, err)
	require.NotContains(t, string(log), value)

	named := startAudited(t, "rules: [{level: RequestResponse, resources: [{resources: [secrets]}]}]\n")
	e := named.complete(named.create(secrets, secret))
	require.Equal(t, "RequestResponse", e.Level)
	require.Equal(t, m{"password": value}, e.RequestObject["data"])
	require.Equal(t, m{"password": value}, e.ResponseObject["data"])
}

func TestAudit_RefusedRequestsAreRecorded(t *testing.T) {
	t.Parallel()
	s := startAudited(t, "rules: [{level: Metadata}]\n")
	refused := s.bearing("wrong").get("/version").ok(http.StatusUnauthorized)
	events := s.events(refused.header.Get("Audit-Id"), 1)
	require.Equal(t, "ResponseStarted", events[0].Stage)
	require.Empty(t, events[0].User)
	require.EqualValues(t, 401, events[0].ResponseStatus.Code)
	require.Equal(t, "Authentication failed, attempted: bearer", events[0].ResponseStatus.Message)
	require.NotContains(t, mustRead(t, s.log), "wrong")

	e := s.complete(s.get(configMaps, "Impersonate-User", "jane"))
	require.EqualValues(t, 403, e.ResponseStatus.Code)
	require.Equal(t, "forbid", e.Annotations["authorization.k8s.io/decision"])
	require.Equal(t, "admin", e.User.Username)
	require.Equal(t, "jane", e.ImpersonatedUser.Username)

	s.create(clusterRoleBindings, clusterRoleBinding("views", "view", subject("User", "jane")))
	e = s.complete(s.get(configMaps, "Impersonate-User", "jane").ok(http.StatusOK))
	require.Equal(t, `RBAC: allowed by ClusterRoleBinding "views" of ClusterRole "view" to User "jane"`,
		e.Annotations["authorization.k8s.io/reason"])
}

func TestAudit_WithoutAnAuditorNothingIsAdded(t *testing.T) {
	t.Parallel()
	require.Empty(t, start(t).get("/version").header.Get("Audit-Id"))
}

func TestAudit_APanicIsAStage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	o := audit.Defaults()
	o.PolicyFile, o.Log.Path = filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	writePolicy(t, o.PolicyFile, "rules: [{level: Metadata}]\n")
	auditor, err := audit.Open(o, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, auditor.Close()) })
	broken := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("broken") })
	}
	s := &auditedServer{connect(t, servertest.Start(t, apiserver.Options{Audit: auditor, Middleware: broken}).Config),
		o.Log.Path}
	a := s.get("/version").ok(http.StatusInternalServerError)
	events := s.events(a.header.Get("Audit-Id"), 2)
	require.Equal(t, "Panic", events[1].Stage)
	require.Equal(t, "APIServer panic'd: broken", events[1].ResponseStatus.Message)
}

func TestAudit_ClientsCannotForgeALine(t *testing.T) {
	t.Parallel()
	s := startAudited(t, auditAll)
	forged := `x","stage":"Panic"}` + "\u009b\u2028"
	a := s.get(configMaps+"/%0A%7B%22kind%22%7D%1B%5B2J", "User-Agent", forged, "Audit-Id", "mine-1")
	require.Equal(t, "mine-1", a.header.Get("Audit-Id"))
	e := s.complete(a)
	require.Equal(t, "\n{\"kind\"}\x1b[2J", e.ObjectRef["name"])
	require.Equal(t, forged, e.UserAgent)
	require.NotContains(t, mustRead(t, s.log), "\x1b")
	require.NotContains(t, mustRead(t, s.log), "\u009b")

	for _, id := range []string{strings.Repeat("x", 65), `a"b`, "a b", "ä"} {
		got := s.get("/version", "Audit-Id", id).header.Get("Audit-Id")
		require.Regexp(t, `^[0-9a-f-]{36}$`, got, id)
	}

	e = s.complete(s.get("/version", "User-Agent", strings.Repeat("u", 9000),
		"X-Forwarded-For", strings.Repeat("10.1.2.3, ", 5000)+"10.9.9.9", "X-Real-Ip", "10.8.8.8"))
	require.Len(t, e.UserAgent, 1024+len("...TRUNCATED"))
	require.Len(t, e.SourceIPs, 32)
	require.Equal(t, []string{"10.9.9.9", "10.8.8.8", "127.0.0.1"}, e.SourceIPs[29:])

	big := configMap("big")
	big["data"] = m{"k": strings.Repeat("x", 1<<20)}
	e = s.complete(s.create(configMaps, big))
	require.Len(t, e.RequestObject["data"].(m)["k"], 1<<20)
}

func TestAudit_AnEventThatIsTooLargeLosesItsBodies(t *testing.T) {
	t.Parallel()
	s := startAudited(t, auditAll, func(o *audit.Options) { o.Log.Truncate.Enabled = true })
	big := configMap("big")
	big["data"] = m{"k": strings.Repeat("x", 200<<10)}
	e := s.complete(s.create(configMaps, big))
	require.Nil(t, e.RequestObject)
	require.Nil(t, e.ResponseObject)
	require.Equal(t, "true", e.Annotations["audit.k8s.io/truncated"])
	require.Equal(t, ref("name", "big"), e.ObjectRef)
}

func TestAudit_ThePolicyIsFollowedWhileTheServerRuns(t *testing.T) {
	t.Parallel()
	var policy string
	s := startAudited(t, "rules: [{level: None}]\n", func(o *audit.Options) { policy = o.PolicyFile })
	require.Empty(t, s.get("/version").header.Get("Audit-Id"))
	writePolicy(t, policy, "rules: [{level: Metadata}]\n")
	recorded := func() bool { return s.get("/version").header.Get("Audit-Id") != "" }
	require.Eventually(t, recorded, patience, tick)
	writePolicy(t, policy, "rules: [{level: Everything}]\n")
	require.True(t, recorded(), "a policy that is wrong changes nothing")
	require.Contains(t, string(s.get("/metrics").body), `apiserver_audit_level_total{level="None"}`)
}

func TestAudit_BlockingStrictRejectsRequestsThatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("SKIPPED: there is no /dev/full on this system")
	}
	full := func(mode string) func(*audit.Options) {
		return func(o *audit.Options) { o.Log.Path, o.Log.Batch.Mode = "/dev/full", mode }
	}
	for mode, code := range map[string]int{
		audit.ModeBlockingStrict: 500, audit.ModeBlocking: 200, audit.ModeBatch: 200,
	} {
		s := startAudited(t, "rules: [{level: None, nonResourceURLs: [/metrics]}, {level: Metadata}]\n", full(mode))
		a := s.get("/version").ok(code)
		metrics := string(s.get("/metrics").body)
		if code == 500 {
			require.Contains(t, string(a.body), "failed to store audit event")
			require.Contains(t, metrics, "apiserver_audit_requests_rejected_total 1")
		}
		require.Eventually(t, func() bool {
			return strings.Contains(string(s.get("/metrics").body), `apiserver_audit_error_total{plugin="log"}`)
		}, patience, tick, mode)
	}
}

func mustRead(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func TestAudit_EverySpellingOfAWatchIsAWatch(t *testing.T) {
	t.Parallel()
	s := startAudited(t, "rules: [{level: Metadata, verbs: [watch]}]\n")
	require.Empty(t, s.get(configMaps).header.Get("Audit-Id"))
	a := s.get(configMaps + "?w%61tch=1&timeoutSeconds=1").ok(http.StatusOK)
	require.NotEmpty(t, a.header.Get("Audit-Id"))
}
