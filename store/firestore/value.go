package firestore

import (
	"encoding/base64"
	"regexp"
	"strings"
	"time"

	pb "cloud.google.com/go/firestore/apiv1/firestorepb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/reaper-ttl/reaper/store"
	"github.com/reaper-ttl/reaper/store/internal/google"
)

var simplePath = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z_0-9]*$`)

// fieldPath returns a field's name as a path, which is what queries and masks
// take. A name that is not a simple identifier is quoted.
func fieldPath(name string) string {
	if simplePath.MatchString(name) {
		return name
	}
	return "`" + strings.NewReplacer(`\`, `\\`, "`", "\\`").Replace(name) + "`"
}

// toValue converts a text, an instant or an integer to the service's form.
func toValue(v store.Value) *pb.Value {
	if n, ok := v.Integer(); ok {
		return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: n}}
	}
	if v.Type == store.Instant {
		return &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(v.Time)}}
	}
	return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: v.Text}}
}

// fromValue returns what a field holds; a nil field is missing.
func fromValue(v *pb.Value) store.Value {
	switch x := v.GetValueType().(type) {
	case nil, *pb.Value_NullValue:
		return store.Value{}
	case *pb.Value_StringValue:
		return store.TextValue(x.StringValue)
	case *pb.Value_TimestampValue:
		return store.InstantValue(instant(x.TimestampValue))
	case *pb.Value_ArrayValue:
		return store.Value{Type: store.List, Text: google.JSONText(jsonValue(v))}
	default:
		return store.Value{Type: store.Other, Text: google.JSONText(jsonValue(v))}
	}
}

// jsonValue returns a value for encoding as JSON. A type that JSON does not have
// becomes a readable string: bytes in base 64, instants in RFC 3339, references
// as names, NaN and the infinities by name.
func jsonValue(v *pb.Value) any {
	switch x := v.GetValueType().(type) {
	case *pb.Value_BooleanValue:
		return x.BooleanValue
	case *pb.Value_IntegerValue:
		return x.IntegerValue
	case *pb.Value_DoubleValue:
		return google.Float(x.DoubleValue)
	case *pb.Value_TimestampValue:
		return x.TimestampValue.AsTime().Format(time.RFC3339Nano)
	case *pb.Value_StringValue:
		return x.StringValue
	case *pb.Value_BytesValue:
		return base64.StdEncoding.EncodeToString(x.BytesValue)
	case *pb.Value_ReferenceValue:
		return x.ReferenceValue
	case *pb.Value_GeoPointValue:
		return map[string]any{"lat": google.Float(x.GeoPointValue.GetLatitude()),
			"lng": google.Float(x.GeoPointValue.GetLongitude())}
	case *pb.Value_ArrayValue:
		out := make([]any, len(x.ArrayValue.GetValues()))
		for i, e := range x.ArrayValue.GetValues() {
			out[i] = jsonValue(e)
		}
		return out
	case *pb.Value_MapValue:
		return jsonObject(x.MapValue.GetFields())
	default:
		return nil
	}
}

func jsonObject(fields map[string]*pb.Value) map[string]any {
	out := make(map[string]any, len(fields))
	for name, v := range fields {
		out[name] = jsonValue(v)
	}
	return out
}

// parseJSON converts the text of one JSON value to the service's form.
func parseJSON(text []byte) (*pb.Value, error) {
	raw, err := google.ParseJSON(text)
	if err != nil {
		return nil, err
	}
	return serviceValue(raw), nil
}

// serviceValue converts a value that google.ParseJSON returned.
func serviceValue(raw any) *pb.Value {
	switch v := raw.(type) {
	case bool:
		return &pb.Value{ValueType: &pb.Value_BooleanValue{BooleanValue: v}}
	case string:
		return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: v}}
	case int64:
		return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: v}}
	case float64:
		return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: v}}
	case []any:
		list := &pb.ArrayValue{}
		for _, e := range v {
			list.Values = append(list.Values, serviceValue(e))
		}
		return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: list}}
	case map[string]any:
		fields := make(map[string]*pb.Value, len(v))
		for name, e := range v {
			fields[name] = serviceValue(e)
		}
		return &pb.Value{ValueType: &pb.Value_MapValue{MapValue: &pb.MapValue{Fields: fields}}}
	default: // JSON has no other types
		return &pb.Value{ValueType: &pb.Value_NullValue{}}
	}
}
