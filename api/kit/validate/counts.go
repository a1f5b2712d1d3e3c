package validate

import (
	"github.com/coxswain-dev/coxswain/api/field"
)

// Count is a number in a status, with its field's name. It is an alias, so that tables of counts in other
// packages need no field names.
type Count = struct {
	Name string
	N    int32
}

func Counts(path *field.Path, list []Count) field.ErrorList {
	var errs field.ErrorList
	for _, c := range list {
		if field.Enough(errs) {
			break
		}
		errs = append(errs, NonNegative(path.Child(c.Name), c.N)...)
	}
	return errs
}

// NotAbove requires c to be at most bound. The message has the full path of bound's field.
func NotAbove(path *field.Path, c, bound Count) field.ErrorList {
	if c.N <= bound.N {
		return nil
	}
	return NotAboveNamed(path, c, bound.N, path.Child(bound.Name).String())
}

func NotAboveNamed(path *field.Path, c Count, limit int32, name string) field.ErrorList {
	if c.N <= limit {
		return nil
	}
	return field.ErrorList{field.Invalid(path.Child(c.Name), c.N, "cannot be greater than "+name)}
}
