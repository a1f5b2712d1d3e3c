package apiserver_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Readers and writers in two versions run concurrently. Each reader gets documents of its version, in each form. A
// converted object shares parts with the stored one, which is why the test looks for races.
func TestView_ReadersBesideWritersGetTheirOwnVersion(t *testing.T) {
	t.Parallel()
	s := start(t)
	paths := map[string]string{autoscalers: "autoscaling/v2", autoscalersV1: "autoscaling/v1"}
	own := map[string]string{"autoscaling/v2": "metrics", "autoscaling/v1": "targetCPUUtilizationPercentage"}
	check := func(a *answer, version string) {
		switch a.code {
		case http.StatusOK, http.StatusCreated:
		case http.StatusNotFound, http.StatusConflict, http.StatusUnprocessableEntity:
			return // a conflict, or another writer has deleted the object
		default:
			assert.Fail(t, "refused", "%d %s", a.code, a.body)
			return
		}
		assert.Equal(t, version, a.at("apiVersion"))
		for other, name := range own {
			_, has := a.at("spec").(m)[name]
			assert.Equal(t, other == version, has, "%s: %s", version, a.body)
		}
	}
	const names, rounds = 4, 25
	var work sync.WaitGroup
	for path, version := range paths {
		for i := range names {
			name := "web-" + strconv.Itoa(i)
			work.Go(func() { // a writer
				for round := range rounds {
					body := autoscaler(name)
					if version == "autoscaling/v1" {
						body["apiVersion"] = version
						body["spec"] = m{"maxReplicas": 5, "targetCPUUtilizationPercentage": 50 + round,
							"scaleTargetRef": m{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}
					}
					check(s.do(http.MethodPost, path, body), version)
					check(s.get(path+"/"+name), version)
					check(s.patch(path+"/"+name, mergePatch, m{"spec": m{"maxReplicas": 6 + round}}), version)
					check(s.do(http.MethodPatch, path+"/"+name+"?fieldManager=m&force=true", m{"kind": body["kind"],
						"apiVersion": version, "metadata": m{"labels": m{"round": strconv.Itoa(round)}}},
						"Content-Type", applyPatch), version)
					if round%5 == 4 {
						s.delete(path+"/"+name, nil)
					}
				}
			})
			work.Go(func() { // a reader
				for round := range rounds {
					check(s.get(path+"/"+name), version)
					check(s.get(path+"/"+name+"?resourceVersion=0"), version)
					list := s.get(path)
					for _, item := range list.at("items").([]any) {
						assert.Equal(t, version, item.(m)["apiVersion"])
						assert.Contains(t, item.(m)["spec"], own[version])
					}
					if round%5 == 0 {
						binary := s.get(path+"/"+name, "Accept", "application/vnd.kubernetes.protobuf")
						other := strings.Replace("autoscaling/v3", "3", map[string]string{"autoscaling/v1": "2",
							"autoscaling/v2": "1"}[version], 1)
						assert.NotContains(t, string(binary.body[:min(40, len(binary.body))]), other)
					}
				}
			})
		}
	}
	work.Wait()
	require.False(t, t.Failed())
}
