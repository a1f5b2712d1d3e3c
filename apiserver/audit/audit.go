// Package audit records which user did what, as Kubernetes does: one audit.k8s.io/v1 Event for each stage of a request.
//
//	policy.go      the policy file: its fields, and what is wrong with them
//	rule.go        a compiled policy: the level and the stages of a request, by its first rule that matches
//	request.go     one audited request, from its beginning to the end of its response
//	encode.go      an event as JSON; legacy.go as a line of text; cut.go omits managed fields
//	auditor.go     the Auditor has the policy and the sinks
//	sink.go        a sink frames, truncates and counts events; queue.go batches them
//	logfile.go     sink's file, with rotation (rotate.go); webhook.go posts batches to another server
//	options.go     flags.go   kube-apiserver's flags
//
// A request that is audited has a *Request; all methods of a nil *Request do nothing, so that a server that audits
// nothing pays a comparison. Events are encoded once, by hand, into memory that is used again. What clients choose
// (bodies, header values, names) is bounded before it is kept.
//
// The package knows neither the store nor kinds: bodies reach it as JSON.
package audit

import (
	"fmt"
	"slices"
)

// Level is how much of a request is recorded; each includes the ones before it.
type Level uint8

// The levels of a policy.
const (
	LevelNone Level = iota
	LevelMetadata
	LevelRequest
	LevelRequestResponse
)

var levelNames = []string{"None", "Metadata", "Request", "RequestResponse"}

func (l Level) String() string { return levelNames[l] }

// Stage is the point in a request's life at which an event is made.
type Stage uint8

// The stages. ResponseStarted is that of requests that go on for as long as the client likes, and of requests whose
// credential is refused, which have no other.
const (
	StageRequestReceived Stage = iota
	StageResponseStarted
	StageResponseComplete
	StagePanic
)

var stageNames = []string{"RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"}

func (s Stage) String() string { return stageNames[s] }

// stages is a set of stages.
type stages uint8

func (s stages) has(one Stage) bool { return s&(1<<one) != 0 }

func stagesOf(names []string) (all stages, err error) {
	for _, name := range names {
		i := slices.Index(stageNames, name)
		if i < 0 {
			return 0, fmt.Errorf("unknown stage %q", name)
		}
		all |= 1 << i
	}
	return all, nil
}
