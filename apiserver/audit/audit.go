// Package audit records requests as Kubernetes does: one audit.k8s.io/v1 Event for each stage of a request.
//
//	policy.go      parses and validates the policy file
//	rule.go        compiles a policy: the first matching rule sets the level and stages
//	request.go     tracks an audited request from its arrival to the end of the response
//	encode.go      encodes an event as JSON; legacy.go as a line of text; cut.go removes managed fields
//	auditor.go     implements the Auditor, which holds the policy and the sinks
//	sink.go        frames, truncates and counts events; queue.go batches them
//	logfile.go     writes to a file, with rotation (rotate.go); webhook.go posts batches to a server
//	options.go     defines the options; flags.go kube-apiserver's flags
//
// An audited request has a *Request. All methods of a nil *Request are no-ops, so the cost of a request that is not
// audited is a nil check. Events are encoded once, by hand, into reused buffers. Data that clients control (bodies,
// header values, names) is limited before it is kept.
//
// The package depends neither on the store nor on kinds: bodies arrive as JSON.
package audit

import (
	"fmt"
	"slices"
)

// Level determines how much of a request is recorded. Each level includes the previous ones.
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

// Stage is the point in a request's lifetime when an event is recorded.
type Stage uint8

// The stages of a request. ResponseStarted applies only to requests that last as long as the client wants and to
// requests with an invalid credential, which have no other event.
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
