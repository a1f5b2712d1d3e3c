package plugins

import "github.com/coxswain-dev/coxswain/scheduler/framework"

// PrioritySort tries the pods of the highest priority first and, among equals, the one that has waited
// longest.
type PrioritySort struct{}

// Name implements framework.Plugin.
func (PrioritySort) Name() string { return "PrioritySort" }

// Less implements framework.QueueSortPlugin.
func (PrioritySort) Less(a, b *framework.QueuedPod) bool {
	if a.Priority() != b.Priority() {
		return a.Priority() > b.Priority()
	}
	return a.Added.Before(b.Added)
}
