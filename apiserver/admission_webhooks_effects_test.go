package apiserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
)

// Clients get the warnings of webhooks, within the limits of a response, even if the request is rejected.
func TestWebhooks_WarnClients(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.mutates("m", h.hook("m.example.com", nil))
	h.validates("v", h.hook("v.example.com", nil), h.hook("w.example.com", nil))
	h.on("m.example.com", respond(m{"allowed": true, "warnings": []string{"first", "", "same", "two\nlines"}}))
	h.on("v.example.com", respond(m{"allowed": true, "warnings": []string{"second", "same"}}))
	want := []string{`299 - "first"`, `299 - "same"`, `299 - "two lines"`, `299 - "second"`}
	require.Equal(t, want, h.create(configMaps, settings("c", nil)).header["Warning"])
	require.Equal(t, want, h.patch(configMaps+"/c", mergePatch, m{"data": m{"a": "b"}}).header["Warning"])
	require.Equal(t, want, h.delete(configMaps+"/c", nil).ok(200).header["Warning"])
	h.create(configMaps, settings("c", nil))
	require.Equal(t, want, h.delete(configMaps, nil).ok(200).header["Warning"])
	h.on("w.example.com", respond(m{"allowed": false, "warnings": []string{"third"}}))
	refused := h.do(http.MethodPost, configMaps, settings("c", nil))
	refused.refused(400, "", "without explanation")
	require.Equal(t, append(want, `299 - "third"`), refused.header["Warning"])

	h.on("w.example.com", nil)
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("%03d%s", i, strings.Repeat("ä", 1000)))
	}
	h.on("m.example.com", respond(m{"allowed": true, "warnings": many}))
	h.on("v.example.com", nil)
	got := h.create(configMaps, settings("d", nil)).header["Warning"]
	require.Len(t, got, 16)
	require.Equal(t, `299 - "000`+strings.Repeat("ä", 253)+`"`, got[0])
}

// Fields that a webhook sets have no owner; the client owns the fields that it sent.
func TestWebhooks_FieldsTheySetAreNotTheClients(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.mutates("m", h.hook("m.example.com", nil))
	h.on("m.example.com", respondPatch(add("/data/hook", "x")))
	owned := func(a *answer) map[string]string {
		t.Helper()
		fields := map[string]string{}
		entries, _ := a.at("metadata", "managedFields").([]any)
		for _, entry := range entries {
			text, err := json.Marshal(entry.(m)["fieldsV1"])
			require.NoError(t, err)
			fields[entry.(m)["manager"].(string)] = string(text)
		}
		return fields
	}
	c := h.create(configMaps+"?fieldManager=one", settings("c", m{"a": "b"}))
	require.Equal(t, map[string]string{"one": `{"f:data":{".":{},"f:a":{}}}`}, owned(c))
	require.Equal(t, m{"a": "b", "hook": "x"}, c.at("data"))
	h.on("m.example.com", respondPatch(add("/data/hook", "y"), add("/metadata/labels", m{"l": "1"})))
	c = h.patch(configMaps+"/c?fieldManager=two", mergePatch, m{"data": m{"b": "c"}}).ok(200)
	require.Equal(t, map[string]string{"one": `{"f:data":{".":{},"f:a":{}}}`, "two": `{"f:data":{"f:b":{}}}`}, owned(c))
	reviews := h.asked("m.example.com")
	require.Contains(t, fmt.Sprint(deep(reviews[len(reviews)-1], "object.metadata.managedFields")), "f:b",
		"the webhook sees the owners")
	c = h.do(http.MethodPatch, configMaps+"/c?fieldManager=three", settings("c", m{"c": "d"}), "Content-Type",
		applyPatch).ok(200)
	require.Equal(t, `{"f:data":{"f:c":{}}}`, owned(c)["three"])
	require.Equal(t, "y", c.at("data", "hook"))
	before := owned(c)
	// A write without a change keeps the resourceVersion.
	revision := c.at("metadata", "resourceVersion")
	c = h.patch(configMaps+"/c?fieldManager=two", mergePatch, m{"data": m{"b": "c"}}).ok(200)
	require.Equal(t, revision, c.at("metadata", "resourceVersion"))
	// If a webhook makes managedFields invalid, they are kept and the client is warned.
	h.on("m.example.com", respondPatch(add("/metadata/managedFields/0/operation", "Burn")))
	c = h.patch(configMaps+"/c?fieldManager=two", mergePatch, m{"metadata": m{"labels": m{"l": "2"}}}).ok(200)
	require.Len(t, c.header["Warning"], 1)
	require.Contains(t, c.header["Warning"][0], ".metadata.managedFields was in an invalid state after admission; this could "+
		"be caused by an outdated mutating admission controller; please fix your requests: ")
	before["two"] = `{"f:data":{"f:b":{}},"f:metadata":{"f:labels":{"f:l":{}}}}`
	require.Equal(t, before, owned(c))
	// If a webhook removes managedFields, the fields have no owners.
	h.on("m.example.com", respondPatch(m{"op": "remove", "path": "/metadata/managedFields"}))
	c = h.patch(configMaps+"/c", mergePatch, m{"data": m{"b": "z"}}).ok(200)
	require.Empty(t, owned(c))
}

// A dry run calls webhooks, and stores no object.
func TestWebhooks_DryRun(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.mutates("m", h.hook("m.example.com", m{"sideEffects": "NoneOnDryRun"}))
	h.validates("v", h.hook("v.example.com", nil))
	h.on("m.example.com", respondPatch(add("/data", m{"x": "y"})))
	require.Equal(t, m{"x": "y"}, h.create(configMaps+"?dryRun=All", settings("c", nil)).at("data"))
	h.gone(configMaps + "/c")
	require.Equal(t, true, h.once("m.example.com")["dryRun"])
	require.Equal(t, true, h.once("v.example.com")["dryRun"])
	h.on("v.example.com", respond(m{"allowed": false}))
	h.do(http.MethodPost, configMaps+"?dryRun=All", settings("c", nil)).refused(400, "", "without explanation")
}

// An update that conflicts with another writer calls the webhooks for each attempt. Each attempt begins with the object
// as the client sent it.
func TestWebhooks_ActOnEachAttempt(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.create(configMaps, settings("c", m{"n": "0"}))
	h.mutates("m", h.hook("m.example.com", nil))
	h.on("m.example.com", respondPatch(add("/data/hook", "x")))
	var writing sync.WaitGroup
	for i := range 8 {
		writing.Go(func() { h.patch(configMaps+"/c", mergePatch, m{"data": m{fmt.Sprint(i): "1"}}).ok(200) })
	}
	writing.Wait()
	require.Len(t, h.get(configMaps+"/c").at("data"), 10)
}

// Validating webhooks are called in parallel: each of these waits for the others.
func TestWebhooks_ValidateInParallel(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	const n = 8
	var together sync.WaitGroup
	together.Add(n)
	var hooks []m
	for i := range n {
		name := fmt.Sprintf("v%d.example.com", i)
		hooks = append(hooks, h.hook(name, nil))
		answer := respond(m{"allowed": i < 3, "status": m{"message": name}})
		h.on(name, func(w http.ResponseWriter, r *http.Request) {
			together.Done()
			together.Wait()
			answer(w, r)
		})
	}
	h.validates("v", hooks...)
	h.do(http.MethodPost, configMaps, settings("c", nil)).refused(400, "", `"v3.example.com" denied the request`)
}

// A call ends when the client disconnects.
func TestWebhooks_ACallEndsWithItsRequest(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"m", "v"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			h := startHooked(t)
			if kind == "m" {
				h.mutates("c", h.hook("h.example.com", m{"timeoutSeconds": 30}))
			} else {
				h.validates("c", h.hook("h.example.com", m{"timeoutSeconds": 30}))
			}
			begun, ended := make(chan struct{}), make(chan struct{})
			h.on("h.example.com", func(w http.ResponseWriter, r *http.Request) {
				close(begun)
				hang(w, r)
				close(ended)
			})
			ctx, leave := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.config.Host+configMaps,
				reader(t, settings("c", nil)))
			require.NoError(t, err)
			req.Header.Set("Content-Type", "application/json")
			left := make(chan error, 1)
			go func() {
				res, err := h.http.Do(req)
				if err == nil {
					_ = res.Body.Close()
				}
				left <- err
			}()
			<-begun
			leave()
			require.ErrorIs(t, <-left, context.Canceled)
			<-ended
			h.on("h.example.com", nil)
			h.gone(configMaps + "/c")
		})
	}
}

// The timeout of a call does not exceed the request's own.
func TestWebhooks_TimeoutIsAtMostTheRequests(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.mutates("m", h.hook("m.example.com", m{"timeoutSeconds": 30, "failurePolicy": "Ignore"}))
	timeout := make(chan string, 1)
	h.on("m.example.com", func(w http.ResponseWriter, r *http.Request) {
		timeout <- r.URL.Query().Get("timeout")
		hang(w, r)
	})
	a := h.do(http.MethodPost, configMaps+"?timeout=1s", settings("c", nil))
	require.Equal(t, "1s", <-timeout)
	require.Equal(t, 504, a.code, "%s", a.body)
	h.on("m.example.com", nil)
	h.gone(configMaps + "/c")
}

// /metrics and /debug/admission_webhooks report the calls.
func TestWebhooks_AreCounted(t *testing.T) {
	t.Parallel()
	h := startHooked(t)
	h.mutates("m", h.hook("m.example.com", m{"failurePolicy": "Ignore"}))
	h.validates("v", h.hook("v.example.com", m{"matchConditions": when("!('skip' in object.data)")}))
	h.create(configMaps, settings("ok", m{"a": "b"}))
	h.create(configMaps, settings("skipped", m{"skip": "x"}))
	h.on("v.example.com", respond(m{"allowed": false, "status": m{"code": 403, "message": "never"}}))
	h.do(http.MethodPost, configMaps, settings("no", m{"a": "b"})).ok(403)
	h.on("v.example.com", raw(500, "text/plain", "sad"))
	h.do(http.MethodPost, configMaps, settings("no", m{"a": "b"})).ok(500)
	h.on("v.example.com", nil)
	h.on("m.example.com", raw(500, "text/plain", "sad"))
	h.create(configMaps, settings("open", m{"a": "b"}))
	h.on("m.example.com", respondPatch(add("/data/a", 7)))
	h.do(http.MethodPost, configMaps, settings("no", m{"a": "b"})).ok(500)
	metrics := string(h.get("/metrics").body)
	for _, line := range []string{
		`apiserver_admission_webhook_request_total{code="200",name="m.example.com",operation="CREATE",rejected="false",type="admit"} 4`,
		`apiserver_admission_webhook_request_total{code="500",name="m.example.com",operation="CREATE",rejected="false",type="admit"} 1`,
		`apiserver_admission_webhook_request_total{code="0",name="m.example.com",operation="CREATE",rejected="true",type="admit"} 1`,
		`apiserver_admission_webhook_request_total{code="403",name="v.example.com",operation="CREATE",rejected="true",type="validating"} 1`,
		`apiserver_admission_webhook_rejection_count{error_type="no_error",name="v.example.com",operation="CREATE",rejection_code="403",type="validating"} 1`,
		`apiserver_admission_webhook_rejection_count{error_type="calling_webhook_error",name="v.example.com",operation="CREATE",rejection_code="500",type="validating"} 1`,
		`apiserver_admission_webhook_rejection_count{error_type="apiserver_internal_error",name="m.example.com",operation="CREATE",rejection_code="0",type="admit"} 1`,
		`apiserver_admission_webhook_fail_open_count{name="m.example.com",type="admit"} 1`,
		`apiserver_admission_webhook_admission_duration_seconds_count{name="v.example.com",operation="CREATE",rejected="false",type="validating"} 2`,
		`apiserver_admission_match_condition_exclusions_total{kind="webhook",name="v.example.com",operation="CREATE",type="validate"} 1`,
		`apiserver_admission_match_condition_evaluation_seconds_count{kind="webhook",name="v.example.com",operation="CREATE",type="validating"} 5`,
		`apiserver_admission_step_admission_duration_seconds_count{operation="CREATE",rejected="true",type="validate"} 2`,
	} {
		require.Contains(t, metrics, line+"\n")
	}
	var report calls.Report
	require.NoError(t, json.Unmarshal(h.get(webhookCalls).ok(200).body, &report))
	require.Len(t, report.Webhooks, 2)
	last, other := report.Webhooks[0], report.Webhooks[1]
	require.Equal(t, []any{"m", "m.example.com", calls.Mutating, int64(4), int64(0), int64(2), int64(1)}, []any{
		last.Configuration, last.Webhook, last.Type, last.Allowed, last.Denied, last.Failed, last.FailedOpen})
	require.Equal(t, []any{"v.example.com", calls.Validating, int64(2), int64(1), int64(1)}, []any{other.Webhook, other.Type,
		other.Allowed, other.Denied, other.Failed})
	require.Len(t, other.Recent, 4)
	require.Equal(t, calls.Failed, other.Recent[1].Outcome)
	require.Contains(t, other.Recent[1].Message, `failed calling webhook "v.example.com"`)
	require.Equal(t, calls.Denied, other.Recent[2].Outcome)
	require.Equal(t, `admission webhook "v.example.com" denied the request: never`, other.Recent[2].Message)
	h.as("nobody").get(webhookCalls).ok(403)
}
