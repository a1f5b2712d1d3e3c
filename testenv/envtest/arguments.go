package envtest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
)

// Arguments are flags. Its methods return it, so that calls can be chained.
type Arguments struct {
	values map[string]Arg
}

// EmptyArguments returns no flags.
func EmptyArguments() *Arguments { return &Arguments{} }

// Arg is a flag's values.
type Arg interface {
	// Append returns the flag with further values.
	Append(values ...string) Arg
	// Get returns the values; the defaults may be among them. nil leaves the flag out, and an empty slice passes
	// its name alone.
	Get(defaults []string) []string
}

// given are the values of a flag without the defaults, and added are values besides the defaults.
type (
	exactly []string
	added   []string
	none    struct{}
	bare    struct{}
)

func (g exactly) Append(values ...string) Arg  { return append(slices.Clip(g), values...) }
func (g exactly) Get([]string) []string        { return g }
func (a added) Append(values ...string) Arg    { return append(slices.Clip(a), values...) }
func (a added) Get(defaults []string) []string { return slices.Concat(defaults, a) }
func (none) Append(values ...string) Arg       { return exactly(values) }
func (none) Get([]string) []string             { return nil }
func (b bare) Append(...string) Arg            { return b }
func (bare) Get([]string) []string             { return []string{} }

// DontPass omits a flag, and PassAsName passes it without a value.
var (
	DontPass   Arg = none{}
	PassAsName Arg = bare{}
)

// FuncArg is a flag whose values are computed when they are needed.
type FuncArg func(defaults []string) []string

// Append returns the function unchanged: it alone decides about the values.
func (f FuncArg) Append(...string) Arg { return f }

// Get calls the function.
func (f FuncArg) Get(defaults []string) []string { return f(defaults) }

// Get returns a flag.
func (a *Arguments) Get(key string) Arg {
	if arg, ok := a.values[key]; ok {
		return arg
	}
	return added(nil)
}

// SetRaw sets a flag.
func (a *Arguments) SetRaw(key string, arg Arg) *Arguments {
	if a.values == nil {
		a.values = map[string]Arg{}
	}
	a.values[key] = arg
	return a
}

// Set gives a flag these values instead of any others.
func (a *Arguments) Set(key string, values ...string) *Arguments {
	return a.SetRaw(key, exactly(values))
}

// Append gives a flag further values, in addition to its present ones and to the defaults.
func (a *Arguments) Append(key string, values ...string) *Arguments {
	return a.SetRaw(key, a.Get(key).Append(values...))
}

// AppendNoDefaults is Append for a flag that does not have the defaults.
func (a *Arguments) AppendNoDefaults(key string, values ...string) *Arguments {
	if arg, ok := a.values[key]; ok {
		return a.SetRaw(key, arg.Append(values...))
	}
	return a.Set(key, values...)
}

// Enable passes a flag by its name alone, and Disable omits it.
func (a *Arguments) Enable(key string) *Arguments  { return a.SetRaw(key, PassAsName) }
func (a *Arguments) Disable(key string) *Arguments { return a.SetRaw(key, DontPass) }

// AsStrings returns the flags as on a command line, sorted by name. It includes the defaults that were not changed.
func (a *Arguments) AsStrings(defaults map[string][]string) []string {
	names := map[string]bool{}
	for name := range defaults {
		names[name] = true
	}
	for name := range a.values {
		names[name] = true
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		values := a.Get(name).Get(defaults[name])
		if values != nil && len(values) == 0 {
			all = append(all, "--"+name)
		}
		for _, value := range values {
			all = append(all, "--"+name+"="+value)
		}
	}
	return all
}

func (a *Arguments) clone() *Arguments { return &Arguments{values: maps.Clone(a.values)} }

// appendRendered adds the flags of templates. Each template must be --name=value when it is rendered with data.
// Empty results are omitted.
func (a *Arguments) appendRendered(templates []string, data any) error {
	for _, text := range templates {
		parsed, err := template.New("").Parse(text)
		if err != nil {
			return fmt.Errorf("envtest: Args: %w", err)
		}
		var rendered strings.Builder
		if err := parsed.Execute(&rendered, data); err != nil {
			return fmt.Errorf("envtest: Args: %w", err)
		}
		arg := rendered.String()
		if arg == "" {
			continue
		}
		flag, dashed := strings.CutPrefix(arg, "--")
		name, value, assigned := strings.Cut(flag, "=")
		if !dashed || !assigned {
			return fmt.Errorf("envtest: Args: %q does not have the form --name=value", arg)
		}
		a.AppendNoDefaults(name, value)
	}
	return nil
}
