package controller

import (
	"fmt"
	"hash/fnv"
	"strconv"

	"k8s.io/apimachinery/pkg/util/rand"
)

// TemplateHash is the part of a name that stands for a pod template, given in a serialized form. collisions
// distinguishes templates that have the same hash by chance; nil is for an owner that does not count them.
func TemplateHash(template []byte, collisions *int32) string {
	h := fnv.New32a()
	_, _ = h.Write(template) // a hash takes everything
	if collisions != nil {
		fmt.Fprintf(h, "%d", *collisions)
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}
