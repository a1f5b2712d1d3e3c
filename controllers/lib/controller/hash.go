package controller

import (
	"fmt"
	"hash/fnv"
	"strconv"

	"k8s.io/apimachinery/pkg/util/rand"
)

// TemplateHash returns the hash of a serialized pod template that is part of names. collisions distinguishes
// templates with the same hash; it is nil for an owner that does not count collisions.
func TemplateHash(template []byte, collisions *int32) string {
	h := fnv.New32a()
	_, _ = h.Write(template) // a hash never fails
	if collisions != nil {
		fmt.Fprintf(h, "%d", *collisions)
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}
