package fieldmanager

import (
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
)

// Stamp replaces the times of new entries, which the library took from its own clock, with now. before contains the
// previous entries.
func Stamp(entries, before []metav1.ManagedFieldsEntry, now metav1.Time) []metav1.ManagedFieldsEntry {
	for i := range entries {
		e := &entries[i]
		e.FieldsV1 = &metav1.FieldsV1{Raw: htmlSafe(e.FieldsV1.GetRawBytes())}
		existing := false
		for _, b := range before {
			existing = existing || sameManager(b, *e) && b.Time.Equal(e.Time)
		}
		if !existing && e.Time != nil {
			e.Time = &now
		}
	}
	sortEntries(entries)
	return entries
}

// KeepTimes restores the old managedFields if an apply has changed only their times.
func KeepTimes(obj, old api.Object) {
	entries := obj.GetManagedFields()
	if !sameEntries(entries, old.GetManagedFields(), false) {
		return
	}
	obj.SetManagedFields(old.GetManagedFields())
	if !equality.Semantic.DeepEqual(obj, old) {
		obj.SetManagedFields(entries)
	}
}
