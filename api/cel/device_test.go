package cel_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api/cel"
)

func TestCheckDeviceSelector(t *testing.T) {
	t.Parallel()
	for expression, wrong := range map[string]string{
		`device.driver == "gpu.example.com"`:                                                                             "",
		`device.attributes["gpu.example.com"].model == "a100"`:                                                           "",
		`device.attributes["gpu.example.com"].ready`:                                                                     "",
		`device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) >= 0`:                                     "",
		`cel.bind(gpu, device.attributes["gpu.example.com"], gpu.a && gpu.b)`:                                            "",
		`device.attributes["gpu.example.com"].version.isGreaterThan(semver("1.2.3")) && device.allowMultipleAllocations`: "",
		`device.name == "x"`: "undefined field 'name'",
		`device.driver`:      "must evaluate to bool or the unknown type, not string",
		`device.driver ==`:   "compilation failed: ERROR: <input>:1:17: Syntax error",
		`object.spec == 1`:   "undeclared reference to 'object'",
	} {
		err := cel.CheckDeviceSelector(expression)
		if wrong == "" {
			require.NoError(t, err, expression)
		} else {
			require.ErrorContains(t, err, wrong, expression)
		}
	}
}
