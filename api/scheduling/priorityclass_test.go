package scheduling_test

import (
	"testing"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestPriorityClass_ValidateRejects(t *testing.T) {
	t.Parallel()
	kindtest.Create(t, "PriorityClass", "metadata: {name: p}\nvalue: 100", []kindtest.Case{
		{"value", []string{"100", "2000000000"}, []string{"Forbidden value"}},
		{"reserved", []string{"name: p", "name: system-p"}, []string{"Forbidden metadata.name"}},
	})
	kindtest.Update(t, "PriorityClass", "value: 100",
		[]kindtest.Case{{"value", []string{"100", "101"}, []string{"Forbidden value"}}})
}
