package validate

import (
	"path"
	"strings"

	"github.com/coxswain-dev/coxswain/api/field"
)

// RelativePath checks a path below another one: it must not be absolute or contain "..".
func RelativePath(fldPath *field.Path, p string) field.ErrorList {
	var errs field.ErrorList
	if path.IsAbs(p) {
		errs = append(errs, field.Invalid(fldPath, p, "must be a relative path"))
	}
	return append(errs, NoBacksteps(fldPath, p)...)
}

// NoBacksteps rejects a path with an element "..".
func NoBacksteps(path *field.Path, p string) field.ErrorList {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return field.ErrorList{field.Invalid(path, p, "must not contain '..'")}
		}
	}
	return nil
}
