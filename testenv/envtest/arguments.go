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
	// Get returns the values, to which the defaults may belong. nil is no flag, and none the name alone.
	Get(defaults []string) []string
}

// given are values of their own, and added ones besides the defaults.
type (
	given []string
	added []string
	none  struct{}
	bare  struct{}
)

func (g given) Append(values ...string) Arg    { return append(slices.Clip(g), values...) }
func (g given) Get([]string) []string          { return g }
func (a added) Append(values ...string) Arg    { return append(slices.Clip(a), values...) }
func (a added) Get(defaults []string) []string { return slices.Concat(defaults, a) }
func (none) Append(values ...string) Arg       { return given(values) }
func (none) Get([]string) []string             { return nil }
func (b bare) Append(...string) Arg            { return b }
func (bare) Get([]string) []string             { return []string{} }

// DontPass leaves a flag out, and PassAsName passes it without a value.
var (
	DontPass   Arg = none{}
	PassAsName Arg = bare{}
)

// FuncArg is a flag whose values are found out when they are needed.
type FuncArg func(defaults []string) []string

// Append returns the function: it decides alone.
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

// Set gives a flag these values and no others.
func (a *Arguments) Set(key string, values ...string) *Arguments { return a.SetRaw(key, given(values)) }

// Append gives a flag these values besides those that it has, and besides the defaults.
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

// Enable passes a flag by its name alone, and Disable leaves it out.
func (a *Arguments) Enable(key string) *Arguments  { return a.SetRaw(key, PassAsName) }
func (a *Arguments) Disable(key string) *Arguments { return a.SetRaw(key, DontPass) }

// AsStrings returns the flags as a command line has them, in the order of their names. Those of defaults that were not
// set are among them.
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

// appendRendered adds the flags of templates, each of which is --name=value when it is rendered with data. Empty ones
// are left out.
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
